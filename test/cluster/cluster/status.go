package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
)

// clusterState is what people and programs are told of a cluster.
type clusterState struct {
	Name       string
	API        string
	Kubeconfig string
	Members    []memberState
}

type memberState struct {
	Name string
	// PID is the number of the member's process 1 on the host.
	PID        int
	Address    string
	Problem    string           `json:",omitempty"`
	Components []componentState `json:",omitempty"`
}

func status(ctx context.Context, args []string) error {
	flags := newFlags("status")
	asJSON := flags.Bool("json", false, "")
	c, err := parseNamed(flags, args, 0, 0)
	if err != nil {
		return err
	}
	r, err := c.mustExist()
	if err != nil {
		return err
	}
	state := c.look(ctx, r)
	if *asJSON {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(state)
	} else {
		err = state.print()
	}
	if err != nil {
		return err
	}
	if problems := state.problems(); len(problems) > 0 {
		return fmt.Errorf("%d things of the cluster %s aren't up; see cluster logs --name %s", len(problems), c.name, c.name)
	}
	return nil
}

// look asks everything there is how it is.
func (c *cluster) look(ctx context.Context, r *record) clusterState {
	if r.Slot == nil {
		return clusterState{Name: c.name, Members: []memberState{{Name: controlMember, Problem: "was never set up"}}}
	}
	state := clusterState{Name: c.name, API: r.Slot.apiURL(), Kubeconfig: c.kubeconfig()}
	state.Members = make([]memberState, len(r.members()))
	var all sync.WaitGroup
	for i, name := range r.members() {
		all.Go(func() { state.Members[i] = c.lookAt(ctx, r, name) })
	}
	all.Wait()
	return state
}

func (c *cluster) lookAt(ctx context.Context, r *record, name string) memberState {
	state := memberState{Name: name, Address: r.Slot.control()}
	if name != controlMember {
		state.Address = r.Slot.node(nodeIndex(name))
	}
	p, found, err := c.readProcess(name)
	switch {
	case err != nil:
		state.Problem = err.Error()
		return state
	case !found || !p.running():
		state.Problem = "its process 1 is dead"
		return state
	}
	state.PID = p.pid
	answered, err := c.ask(ctx, name, request{Status: true})
	if err != nil {
		state.Problem = err.Error()
		return state
	}
	state.Components = answered.Components
	if name == controlMember {
		return state
	}
	api, err := c.newAPIClient()
	if err == nil {
		_, err = api.nodeReady(ctx, name)
	}
	if err != nil {
		state.Problem = err.Error()
	}
	return state
}

func (s clusterState) problems() []string {
	var problems []string
	for _, member := range s.Members {
		if member.Problem != "" {
			problems = append(problems, member.Name+": "+member.Problem)
		}
		for _, component := range member.Components {
			if !component.Ready {
				problems = append(problems, fmt.Sprintf("%s: %s: %s", member.Name, component.Name, component.Note))
			}
		}
	}
	return problems
}

// dead says whether a member is gone for good.
func (s clusterState) dead() bool {
	return slices.ContainsFunc(s.Members, func(m memberState) bool { return m.PID == 0 })
}

func (s clusterState) print() error {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "MEMBER\tADDRESS\tCOMPONENT\tSTATE\tSTARTS\n")
	for _, member := range s.Members {
		state := "up"
		if member.Problem != "" {
			state = member.Problem
		}
		fmt.Fprintf(table, "%s\t%s\t\t%s\t\n", member.Name, member.Address, state)
		for _, component := range member.Components {
			state := "ready"
			if !component.Ready {
				state = component.Note
			}
			fmt.Fprintf(table, "\t\t%s\t%s\t%d\n", component.Name, state, component.Starts)
		}
	}
	return table.Flush()
}
