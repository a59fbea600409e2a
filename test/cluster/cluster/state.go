package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"
)

const (
	stateVariable = "ALIQUOT_STATE"
	defaultState  = "/var/tmp/aliquot"
	controlMember = "control"
)

// A name becomes part of paths and of cgroup names.
var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// cluster is the place of one cluster in the state folder; whether there is one is another matter.
type cluster struct {
	name string
	base string
	dir  string
}

// record is what must be known of a cluster to manage it later.
type record struct {
	Parameters
	// Slot picks the cluster's addresses; nil until it has been taken.
	Slot *slot
	// Interface is the number of the host's interface, which tells it from another cluster's of the same name.
	Interface int
	// Fingerprint tells whether the cluster was made from the same programs and machine files.
	Fingerprint string
}

func newCluster(name string) (*cluster, error) {
	if !validName.MatchString(name) {
		return nil, usagef("--name %s: want up to 32 lower-case letters, digits and hyphens", name)
	}
	base := os.Getenv(stateVariable)
	if base == "" {
		base = defaultState
	}
	base, err := filepath.Abs(base)
	if err != nil {
		return nil, err
	}
	return &cluster{name: name, base: base, dir: filepath.Join(base, name)}, nil
}

func (c *cluster) kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// member is the folder of the control plane or of a node.
func (c *cluster) member(name string) string { return filepath.Join(c.dir, name) }

// memberConfig holds what a member's programs read: certificates, configuration files, and the init's socket.
func (c *cluster) memberConfig(name string) string { return filepath.Join(c.dir, name, "etc") }

// memberLog is the member's /var/log.
func (c *cluster) memberLog(name string) string { return filepath.Join(c.dir, name, "log") }

// group is the cluster's cgroup. Clusters of one name in two state folders are two clusters.
func (c *cluster) group() string {
	return "/aliquot/" + c.name + "-" + shortHash(c.dir)
}

func (c *cluster) memberGroup(name string) string { return c.group() + "/" + name }

func (c *cluster) recordFile() string { return filepath.Join(c.dir, "cluster.json") }

// read returns nil where there is no cluster.
func (c *cluster) read() (*record, error) {
	text, err := os.ReadFile(c.recordFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", c.recordFile(), err)
	}
	return &r, nil
}

func (c *cluster) write(r *record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(c.recordFile(), text)
}

// mustExist returns the record of a cluster that came up at least as far as having addresses.
func (c *cluster) mustExist() (*record, error) {
	r, err := c.read()
	if err != nil {
		return nil, err
	}
	if r == nil || r.Slot == nil {
		return nil, fmt.Errorf("there is no cluster %s in %s; start one with cluster up --name %s", c.name, c.base, c.name)
	}
	return r, nil
}

// mustHave checks a member's name.
func (c *cluster) mustHave(r *record, name string) error {
	if names := r.members(); !slices.Contains(names, name) {
		return fmt.Errorf("the cluster %s has no %q; it has %v", c.name, name, names)
	}
	return nil
}

// lock keeps other commands that change the cluster out, and makes its folder. The folder itself is the lock, so that
// none is left behind; since down deletes it, one that was waited for may have gone meanwhile.
func (c *cluster) lock(ctx context.Context) (unlock func(), err error) {
	told := false
	for {
		if err := os.MkdirAll(c.dir, 0o755); err != nil {
			return nil, err
		}
		file, err := os.Open(c.dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && sameFile(file, c.dir) {
			return func() { file.Close() }, nil
		}
		file.Close()
		if err == nil {
			continue
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s can't be locked: %w", c.dir, err)
		}
		if !told {
			fmt.Fprintf(os.Stderr, "waiting for another command on the cluster %s to end\n", c.name)
			told = true
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func sameFile(file *os.File, path string) bool {
	held, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(held, there)
}

func replaceFile(path string, content []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
