package main

import (
	"context"
	"fmt"
)

// restart ends one program of a member and returns when its successor is ready.
func restart(ctx context.Context, args []string) error {
	flags := newFlags("restart")
	c, err := parseNamed(flags, args, 2, 2)
	if err != nil {
		return err
	}
	r, err := c.mustExist()
	if err != nil {
		return err
	}
	member, component := flags.Arg(0), flags.Arg(1)
	if err := c.mustHave(r, member); err != nil {
		return err
	}
	tell := newProgress()
	tell.say("%s on %s is told to end", component, member)
	if _, err := c.ask(ctx, member, request{Restart: component}); err != nil {
		return err
	}
	tell.say("%s on %s runs again and is ready", component, member)
	return nil
}

// reboot kills all of a node at once, as a loss of power does, and boots it: what is on its disk stays, /run and the
// driver's state don't.
func reboot(ctx context.Context, args []string) error {
	flags := newFlags("reboot")
	c, err := parseNamed(flags, args, 1, 1)
	if err != nil {
		return err
	}
	r, err := c.mustExist()
	if err != nil {
		return err
	}
	name := flags.Arg(0)
	if err := c.mustHave(r, name); err != nil {
		return err
	}
	if name == controlMember {
		return fmt.Errorf("the control plane can't be rebooted, it holds the network; restart its programs, or use down and up")
	}
	if err := checkRoot(); err != nil {
		return err
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	control, found, err := c.readProcess(controlMember)
	if err != nil {
		return err
	}
	if !found || !control.running() {
		return fmt.Errorf("the control plane of %s is dead; use cluster up, which replaces the cluster", c.name)
	}
	tell := newProgress()
	if err := c.stopNode(ctx, name, control); err != nil {
		return err
	}
	tell.say("%s is off", name)

	i := nodeIndex(name)
	s, err := c.spawn(name)
	if err != nil {
		return err
	}
	defer s.specs.Close()
	if err := connectNode(ctx, *r.Slot, control, s.process, i, r.Nodes); err != nil {
		return err
	}
	bootID := newUUID()
	if err := s.boot(c.nodeSpec(r, i, bootID)); err != nil {
		return err
	}
	tell.say("%s boots", name)
	return explain(c.awaitBoot(ctx, s, name, bootID, tell))
}

// stopNode ends a node and waits until the kernel has taken down all that was its.
func (c *cluster) stopNode(ctx context.Context, name string, control process) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	p, found, err := c.readProcess(name)
	if err != nil {
		return err
	}
	if found {
		if err := p.kill(); err != nil {
			return fmt.Errorf("%s, process %d, can't be killed: %w", name, p.pid, err)
		}
		if err := p.waitGone(ctx); err != nil {
			return err
		}
	}
	if err := removeGroup(ctx, c.memberGroup(name)); err != nil {
		return err
	}
	return disconnectNode(ctx, control, nodeIndex(name))
}
