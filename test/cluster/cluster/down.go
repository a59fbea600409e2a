package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"aliquot.dev/test/cluster/internal/cgroup"
)

func down(ctx context.Context, args []string) error {
	c, err := parseNamed(newFlags("down"), args, 0, 0)
	if err != nil {
		return err
	}
	if err := checkRoot(); err != nil {
		return err
	}
	_, err = os.Stat(c.dir)
	existed := err == nil
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	tell := newProgress()
	if err := c.remove(ctx); err != nil {
		return err
	}
	if existed {
		tell.say("cluster %s is gone", c.name)
	} else {
		tell.say("there is no cluster %s", c.name)
	}
	return nil
}

// remove is clean, and deletes the cluster's folder.
func (c *cluster) remove(ctx context.Context) error {
	if err := c.clean(ctx); err != nil {
		return err
	}
	if err := os.Remove(c.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Other clusters may be there.
	_ = os.Remove(c.base)
	return nil
}

// clean removes all there is of the cluster, whatever state it is in. It goes by what is there, not by what should be.
func (c *cluster) clean(ctx context.Context) error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	r, err := c.read()
	if err != nil {
		// A record that was cut off names no interface; the folder goes all the same.
		r = nil
	}
	var ended []process
	for _, entry := range entries {
		p, found, err := c.readProcess(entry.Name())
		if err != nil || !found {
			continue
		}
		if err := p.kill(); err != nil {
			return fmt.Errorf("%s, process %d, can't be killed: %w", entry.Name(), p.pid, err)
		}
		ended = append(ended, p)
	}
	for _, p := range ended {
		if err := p.waitGone(ctx); err != nil {
			return err
		}
	}
	if err := removeGroup(ctx, c.group()); err != nil {
		return err
	}
	if r != nil && r.Slot != nil {
		if err := disconnectHost(ctx, *r.Slot, r.Interface); err != nil {
			return err
		}
	}
	// Nothing is mounted here outside of the members. If something is, deleting must not go through it.
	if err := unmountBelow(c.dir); err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(c.dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// removeGroup kills what is left in a cgroup, and deletes it. Being in the cluster's group is what makes a process the
// cluster's, also when the file with its number is lost.
func removeGroup(ctx context.Context, group string) error {
	hierarchies, err := cgroup.Host()
	if err != nil {
		return err
	}
	err = waitUntil(ctx, func() error {
		pids, err := cgroup.Processes(hierarchies, group)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(pids) > 0 {
			return fmt.Errorf("processes %v were killed and don't end", pids)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return cgroup.Remove(ctx, hierarchies, group)
}

func unmountBelow(folder string) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for _, target := range slices.Backward(mountsBelow(string(text), folder)) {
		if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
			return fmt.Errorf("%s can't be unmounted: %w", target, err)
		}
	}
	return nil
}

func mountsBelow(mountinfo, folder string) []string {
	var found []string
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if target := unescape.Replace(fields[4]); strings.HasPrefix(target, folder+"/") {
			found = append(found, target)
		}
	}
	return found
}
