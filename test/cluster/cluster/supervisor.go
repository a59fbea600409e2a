package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	// restartDelay keeps a program that can't start from taking the whole machine.
	restartDelay = 500 * time.Millisecond
	// A component that is asked to end is killed after a while. The API server would wait for its watchers.
	stopTimeout    = 3 * time.Second
	restartTimeout = 60 * time.Second
)

// supervisor keeps a member's components running.
type supervisor struct {
	children   *children
	components []*supervised
}

type supervised struct {
	component
	mutex sync.Mutex
	state componentState
	// stopping is set while the component's end is wanted.
	stopping bool
}

// componentState is what people are told of a component.
type componentState struct {
	Name string
	// PID is the member's own number for it; 0 while it doesn't run.
	PID    int
	Starts int
	Ready  bool
	// Note says why it isn't ready, or how it ended last.
	Note string
}

func newSupervisor(children *children, components []component) *supervisor {
	s := &supervisor{children: children}
	for _, c := range components {
		s.components = append(s.components, &supervised{component: c, state: componentState{Name: c.Name, Note: "not started yet"}})
	}
	return s
}

func (s *supervisor) start() {
	for _, c := range s.components {
		go s.keep(c)
	}
}

// keep starts a component again and again.
func (s *supervisor) keep(c *supervised) {
	for {
		if err := s.runOnce(c); err != nil {
			c.set(0, err.Error())
			fmt.Printf("%s: %v\n", c.Name, err)
		}
		c.mutex.Lock()
		wanted := c.stopping
		c.stopping = false
		c.mutex.Unlock()
		if !wanted {
			time.Sleep(restartDelay)
		}
	}
}

func (s *supervisor) runOnce(c *supervised) error {
	log, err := os.OpenFile(filepath.Join("/var/log", c.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	for _, p := range c.Wait {
		c.set(0, "waits for the "+p.What)
		if err := p.wait(context.Background()); err != nil {
			return err
		}
	}
	for _, command := range c.Before {
		if err := s.children.run(command, log); err != nil {
			return err
		}
	}
	c.Before = nil

	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	pid, ended, err := s.children.spawn(c.Args, os.Environ(), []*os.File{null, log, log})
	if err != nil {
		return err
	}
	c.set(pid, "")
	fmt.Printf("%s runs as process %d\n", c.Name, pid)
	return fmt.Errorf("ended: %s", describe(<-ended))
}

func (c *supervised) set(pid int, note string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if pid != 0 {
		c.state.Starts++
	}
	c.state.PID, c.state.Note = pid, note
}

// check tells the component's state now.
func (c *supervised) check(ctx context.Context) componentState {
	c.mutex.Lock()
	state := c.state
	c.mutex.Unlock()
	if state.PID == 0 {
		return state
	}
	err := c.Ready.check(ctx)
	state.Ready = err == nil
	if err != nil {
		state.Note = err.Error()
	}
	return state
}

func (s *supervisor) states(ctx context.Context) []componentState {
	states := make([]componentState, len(s.components))
	var all sync.WaitGroup
	for i, c := range s.components {
		all.Go(func() { states[i] = c.check(ctx) })
	}
	all.Wait()
	return states
}

// restart ends a component and returns when its successor is ready.
func (s *supervisor) restart(ctx context.Context, name string) error {
	var found *supervised
	var names []string
	for _, c := range s.components {
		names = append(names, c.Name)
		if c.Name == name {
			found = c
		}
	}
	if found == nil {
		return fmt.Errorf("there is no component %q here, only %v", name, names)
	}
	ctx, cancel := context.WithTimeout(ctx, restartTimeout)
	defer cancel()
	found.mutex.Lock()
	before := found.state
	found.stopping = before.PID != 0
	found.mutex.Unlock()
	if before.PID == 0 {
		return fmt.Errorf("%s doesn't run (%s)", name, before.Note)
	}
	// The component alone: the shims of pods are containerd's children, and must outlive it.
	if err := syscall.Kill(before.PID, syscall.SIGTERM); err != nil {
		return fmt.Errorf("%s, process %d: %w", name, before.PID, err)
	}
	kill := time.AfterFunc(stopTimeout, func() { _ = syscall.Kill(before.PID, syscall.SIGKILL) })
	defer kill.Stop()
	return waitUntil(ctx, func() error {
		now := found.check(ctx)
		if now.Starts == before.Starts {
			return fmt.Errorf("%s doesn't end", name)
		}
		kill.Stop()
		if !now.Ready {
			return fmt.Errorf("%s doesn't become ready: %s", name, now.Note)
		}
		return nil
	})
}
