// Package cgroup makes and removes one control group in every hierarchy of the machine.
//
// Machines mount version 1 (one hierarchy per controller), version 2 (a single one), or both side by side. A node of a
// test cluster needs the same group in all of them, since kubelet and runc look it up in each; and whatever is in it at
// the end belongs to the cluster, so the group also is the last means to find its processes.
package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Hierarchy is one mounted cgroup file system.
type Hierarchy struct {
	Mount string
	V2    bool
	// Controllers are the hierarchy's own under version 1; version 2 lists them in a file.
	Controllers []string
}

// Host lists the hierarchies mounted on this machine.
func Host() ([]Hierarchy, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	hierarchies, err := parse(file)
	if err != nil {
		return nil, err
	}
	if len(hierarchies) == 0 {
		return nil, errors.New("no cgroup file system is mounted; mount one at /sys/fs/cgroup")
	}
	return hierarchies, nil
}

// UnifiedOnly says whether version 2 is all there is.
func UnifiedOnly(hierarchies []Hierarchy) bool {
	return !slices.ContainsFunc(hierarchies, func(h Hierarchy) bool { return !h.V2 })
}

func parse(mountinfo io.Reader) ([]Hierarchy, error) {
	var hierarchies []Hierarchy
	seen := map[string]bool{}
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		// 31 23 0:27 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
		before, after, found := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !found || len(left) < 6 || len(right) < 3 {
			continue
		}
		mount, kind, options := left[4], right[0], strings.Split(right[2], ",")
		if seen[mount] || (kind != "cgroup" && kind != "cgroup2") {
			continue
		}
		seen[mount] = true
		hierarchy := Hierarchy{Mount: mount, V2: kind == "cgroup2"}
		if !hierarchy.V2 {
			hierarchy.Controllers = slices.DeleteFunc(options, func(o string) bool { return o == "rw" || o == "ro" })
		}
		hierarchies = append(hierarchies, hierarchy)
	}
	return hierarchies, lines.Err()
}

// Make creates the group in every hierarchy, ready to take processes and children.
func Make(hierarchies []Hierarchy, group string) error {
	for _, hierarchy := range hierarchies {
		at := hierarchy.Mount
		for part := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
			if hierarchy.V2 {
				if err := delegate(at); err != nil {
					return err
				}
			}
			parent := at
			at = filepath.Join(at, part)
			if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if slices.Contains(hierarchy.Controllers, "cpuset") {
				if err := inheritCpuset(parent, at); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Join moves the calling process into the group.
func Join(hierarchies []Hierarchy, group string) error {
	for _, hierarchy := range hierarchies {
		file := filepath.Join(hierarchy.Mount, group, "cgroup.procs")
		if err := os.WriteFile(file, []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}

// Processes lists the processes in the group and below it, in all hierarchies.
func Processes(hierarchies []Hierarchy, group string) ([]int, error) {
	var pids []int
	for _, hierarchy := range hierarchies {
		folders, err := tree(filepath.Join(hierarchy.Mount, group))
		if err != nil {
			return nil, err
		}
		for _, folder := range folders {
			text, err := os.ReadFile(filepath.Join(folder, "cgroup.procs"))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			for _, field := range strings.Fields(string(text)) {
				pid, err := strconv.Atoi(field)
				if err != nil {
					return nil, fmt.Errorf("%s/cgroup.procs: %w", folder, err)
				}
				if pid != 0 {
					pids = append(pids, pid)
				}
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Remove deletes the group and everything below it, and its parents where they are empty. The kernel frees a group some
// time after its last process died, hence the context.
func Remove(ctx context.Context, hierarchies []Hierarchy, group string) error {
	for _, hierarchy := range hierarchies {
		if err := removeTree(ctx, filepath.Join(hierarchy.Mount, group)); err != nil {
			return err
		}
		for parent := filepath.Dir(strings.Trim(group, "/")); parent != "."; parent = filepath.Dir(parent) {
			if os.Remove(filepath.Join(hierarchy.Mount, parent)) != nil {
				break
			}
		}
	}
	return nil
}

func removeTree(ctx context.Context, root string) error {
	for {
		folders, err := tree(root)
		if err != nil {
			return err
		}
		var failed error
		for _, folder := range slices.Backward(folders) {
			if err := os.Remove(folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
				failed = err
			}
		}
		if failed == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cgroup %s can't be removed: %w", root, failed)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tree lists a group and what is below it, parents first; a group that isn't there is an empty tree.
func tree(root string) ([]string, error) {
	var folders []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry.IsDir() {
			folders = append(folders, path)
		}
		return nil
	})
	return folders, err
}

// delegate hands all controllers of a version 2 group on to its children.
func delegate(group string) error {
	available, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, controller := range strings.Fields(string(available)) {
		file := filepath.Join(group, "cgroup.subtree_control")
		if err := os.WriteFile(file, []byte("+"+controller), 0); err != nil {
			return fmt.Errorf("controller %s can't be handed on: %w", controller, err)
		}
	}
	return nil
}

// inheritCpuset fills what version 1 leaves empty in a new group; without it no process can join.
func inheritCpuset(parent, group string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(group, name), value, 0); err != nil {
			return err
		}
	}
	return nil
}
