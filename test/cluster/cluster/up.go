package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"aliquot.dev/test/cluster/internal/pki"
)

const (
	// upTimeout is generous: machines that run tests are busy.
	upTimeout   = 3 * time.Minute
	downTimeout = time.Minute
	// patience is what a cluster that is there gets to become well; a program of it may just be starting again.
	patience = 10 * time.Second
	// A component that has been started this often without becoming ready won't.
	hopeless = 6
)

func up(ctx context.Context, args []string) error {
	flags := newFlags("up")
	var machines list
	nodes := flags.Int("nodes", 2, "")
	programs := flags.String("bin", "", "")
	mock := flags.String("mock", "", "")
	flags.Var(&machines, "machine", "")
	c, err := parseNamed(flags, args, 0, 0)
	if err != nil {
		return err
	}
	switch {
	case *nodes < 1 || *nodes > maxNodes:
		return usagef("--nodes %d: want 1 to %d", *nodes, maxNodes)
	case *programs == "":
		return usagef("--bin is missing: the folder of kube, containerd and the other programs")
	case len(machines) > *nodes:
		return usagef("%d --machine files for %d nodes", len(machines), *nodes)
	case len(machines) > 0 && *mock == "":
		return usagef("--mock is missing: the folder of %s and %s, which --machine needs", mockProgram, mockLibrary)
	}
	p := Parameters{Nodes: *nodes, Programs: *programs, Mock: *mock, Machines: machines}
	if err := p.absolute(); err != nil {
		return err
	}
	if err := p.check(); err != nil {
		return err
	}
	if err := checkHost(); err != nil {
		return err
	}
	fingerprint, err := p.fingerprint()
	if err != nil {
		return err
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()

	tell := newProgress()
	if c.keep(ctx, fingerprint, tell) {
		return nil
	}
	err = c.clean(ctx)
	if err == nil {
		err = c.start(ctx, &record{Parameters: p, Fingerprint: fingerprint}, tell)
	}
	if err == nil {
		tell.say("cluster %s is up; KUBECONFIG=%s", c.name, c.kubeconfig())
		return nil
	}
	// The logs that clean removes are read here.
	err = explain(err)
	tell.say("cluster %s didn't come up; what there is of it is removed", c.name)
	cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTimeout)
	defer cancel()
	return errors.Join(err, c.remove(cleaning))
}

func (p *Parameters) absolute() error {
	paths := []*string{&p.Programs}
	if p.Mock != "" {
		paths = append(paths, &p.Mock)
	}
	for i := range p.Machines {
		paths = append(paths, &p.Machines[i])
	}
	for _, path := range paths {
		full, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = full
	}
	return nil
}

// keep says whether the cluster there is is the one asked for, and well.
func (c *cluster) keep(ctx context.Context, fingerprint string, tell *progress) bool {
	r, err := c.read()
	if err != nil {
		tell.say("cluster %s is replaced: %v", c.name, err)
		return false
	}
	if r == nil {
		return false
	}
	if r.Fingerprint != fingerprint {
		tell.say("cluster %s is replaced: it was made with other parameters, programs or machine files", c.name)
		return false
	}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = waitEvery(patient, probeInterval, func() error {
		state := c.look(ctx, r)
		problems := state.problems()
		if len(problems) == 0 {
			return nil
		}
		if state.dead() {
			cancel()
		}
		return errors.New(problems[0])
	})
	if err != nil {
		tell.say("cluster %s is replaced: %v", c.name, err)
		return false
	}
	tell.say("cluster %s is up already; KUBECONFIG=%s", c.name, c.kubeconfig())
	return true
}

// failure is an error that a log may explain.
type failure struct {
	cause error
	log   string
}

func (f failure) Error() string { return f.cause.Error() }

func (f failure) Unwrap() error { return f.cause }

func explain(err error) error {
	var f failure
	if !errors.As(err, &f) || errors.Is(err, context.Canceled) {
		return err
	}
	const lines = 25
	text, readErr := tail(f.log, lines)
	if readErr != nil || text == "" {
		return err
	}
	return fmt.Errorf("%w\nthe end of %s was:\n%s", err, f.log, text)
}

// start brings the cluster up, everything at the same time as far as possible.
func (c *cluster) start(ctx context.Context, r *record, tell *progress) error {
	if err := c.write(r); err != nil {
		return err
	}
	members := map[string]*spawned{}
	// An init whose spec never comes ends.
	defer func() {
		for _, s := range members {
			s.specs.Close()
		}
	}()
	for _, name := range r.members() {
		s, err := c.spawn(name)
		if err != nil {
			return err
		}
		members[name] = s
		if err := c.makeFolders(name); err != nil {
			return err
		}
	}
	control := members[controlMember]
	taken, err := takeSlot(ctx, control.process)
	if err != nil {
		return err
	}
	r.Slot, r.Interface = &taken, linkNumber(taken.hostLink())
	if err := c.write(r); err != nil {
		return err
	}
	if err := connectHost(ctx, taken, r.Nodes); err != nil {
		return err
	}
	if err := connectControl(ctx, taken, control.process, r.Nodes); err != nil {
		return err
	}
	authority, err := pki.NewAuthority("cluster " + c.name)
	if err != nil {
		return err
	}
	keys := credentials{authority: authority, api: taken.apiURL()}
	if err := c.writeControl(r, keys); err != nil {
		return err
	}
	if err := control.boot(c.controlSpec(r)); err != nil {
		return err
	}
	tell.say("control plane starts: etcd, API server, controller manager, scheduler")

	bootIDs := make([]string, r.Nodes)
	for i := range r.Nodes {
		name := nodeName(i)
		if err := connectNode(ctx, taken, control.process, members[name].process, i, r.Nodes); err != nil {
			return err
		}
		if err := c.writeNode(r, keys, i); err != nil {
			return err
		}
		bootIDs[i] = newUUID()
		if err := members[name].boot(c.nodeSpec(r, i, bootIDs[i])); err != nil {
			return err
		}
	}
	tell.say("%d nodes boot", r.Nodes)
	return c.await(ctx, r, members, bootIDs, tell)
}

// await waits until pods can run.
func (c *cluster) await(ctx context.Context, r *record, members map[string]*spawned, bootIDs []string, tell *progress) error {
	api, err := c.newAPIClient()
	if err != nil {
		return err
	}
	ready := apiReady(*r.Slot, filepath.Join(c.memberConfig(controlMember), "ca.crt"))
	parts := []part{func(ctx context.Context) error {
		if err := ready.wait(ctx); err != nil {
			return failure{err, filepath.Join(c.memberLog(controlMember), "kube-apiserver.log")}
		}
		tell.say("API server ready")
		return nil
	}, func(ctx context.Context) error {
		err := waitEvery(ctx, probeInterval, func() error { return api.namespaceReady(ctx) })
		if err != nil {
			return failure{err, filepath.Join(c.memberLog(controlMember), "kube-controller-manager.log")}
		}
		tell.say("namespace default ready")
		return nil
	}}
	for i := range r.Nodes {
		parts = append(parts, c.nodeReady(api, nodeName(i), bootIDs[i], tell))
	}
	for _, name := range r.members() {
		parts = append(parts, c.componentsReady(name, tell))
	}
	return c.together(ctx, members, parts...)
}

// awaitBoot waits until a node that was rebooted can run pods.
func (c *cluster) awaitBoot(ctx context.Context, s *spawned, name, bootID string, tell *progress) error {
	api, err := c.newAPIClient()
	if err != nil {
		return err
	}
	return c.together(ctx, map[string]*spawned{name: s}, c.nodeReady(api, name, bootID, tell), c.componentsReady(name, tell))
}

// part is one of several things that are waited for at the same time.
type part func(ctx context.Context) error

// together waits for all parts. The first that fails ends the others, as does the end of a member.
func (c *cluster) together(ctx context.Context, members map[string]*spawned, parts ...part) error {
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	for name, member := range members {
		go func() {
			select {
			case <-member.ended:
				fail(failure{fmt.Errorf("%s ended while it was set up", name), c.initLog(name)})
			case <-ctx.Done():
			}
		}()
	}
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, wait := range parts {
		all.Go(func() {
			errs[i] = wait(ctx)
			if errs[i] != nil {
				fail(errs[i])
			}
		})
	}
	all.Wait()
	// The others failed because of the cause, unless that is only that the time was over.
	cause := context.Cause(ctx)
	if !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	for _, err := range errs {
		var f failure
		if errors.As(err, &f) {
			return failure{fmt.Errorf("not up after %s: %w", upTimeout, err), f.log}
		}
	}
	return cause
}

// nodeReady waits until the API shows the node ready in this boot.
func (c *cluster) nodeReady(api *apiClient, name, bootID string, tell *progress) part {
	return func(ctx context.Context) error {
		err := waitEvery(ctx, probeInterval, func() error {
			n, err := api.nodeReady(ctx, name)
			if err == nil && n.Status.NodeInfo.BootID != bootID {
				return fmt.Errorf("node %s: kubelet hasn't reported since the boot", name)
			}
			return err
		})
		if err != nil {
			return failure{err, filepath.Join(c.memberLog(name), "kubelet.log")}
		}
		tell.say("node %s ready", name)
		return nil
	}
}

// componentsReady waits until all programs of a member do their work, or one of them clearly never will.
func (c *cluster) componentsReady(name string, tell *progress) part {
	return func(ctx context.Context) error {
		log := c.initLog(name)
		ctx, giveUp := context.WithCancel(ctx)
		defer giveUp()
		err := waitEvery(ctx, probeInterval, func() error {
			answered, err := c.ask(ctx, name, request{Status: true})
			if err != nil {
				return err
			}
			for _, state := range answered.Components {
				if state.Ready {
					continue
				}
				log = filepath.Join(c.memberLog(name), state.Name+logSuffix)
				if state.Starts >= hopeless {
					giveUp()
				}
				return fmt.Errorf("%s on %s: %s", state.Name, name, state.Note)
			}
			return nil
		})
		if err != nil {
			return failure{err, log}
		}
		tell.say("%s: all programs ready", name)
		return nil
	}
}

func (c *cluster) initLog(member string) string {
	return filepath.Join(c.memberLog(member), initName+".log")
}

// tail returns a file's last lines.
func tail(path string, lines int) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n"), nil
}
