package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func testCluster(t *testing.T) *cluster {
	t.Helper()
	t.Setenv(stateVariable, filepath.Join(t.TempDir(), "state"))
	c, err := newCluster("dev")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestLockKeepsOthersOutUntilItIsGivenBack(t *testing.T) {
	c := testCluster(t)
	unlock, err := c.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.lock(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("a second lock gives %v", err)
	}
	unlock()
	unlock, err = c.lock(canceled)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestLockOnAFolderThatWasDeletedIsNone(t *testing.T) {
	c := testCluster(t)
	unlock, err := c.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := os.Remove(c.dir); err != nil {
		t.Fatal(err)
	}
	again, err := c.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer again()
	if _, err := os.Stat(c.dir); err != nil {
		t.Error(err)
	}
}

func TestRecordIsReadAsItWasWritten(t *testing.T) {
	c := testCluster(t)
	if r, err := c.read(); r != nil || err != nil {
		t.Errorf("without a record: %v, %v", r, err)
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	taken := slot(3)
	if err := c.write(&record{Parameters: Parameters{Nodes: 2}, Slot: &taken}); err != nil {
		t.Fatal(err)
	}
	r, err := c.mustExist()
	if err != nil {
		t.Fatal(err)
	}
	if *r.Slot != taken || r.Nodes != 2 {
		t.Errorf("read %+v", r)
	}
	if err := c.mustHave(r, "node-1"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"node-2", "", "../dev"} {
		if err := c.mustHave(r, name); err == nil || !strings.Contains(err.Error(), "node-1") {
			t.Errorf("member %q: %v", name, err)
		}
	}
}

func TestFingerprintFollowsWhatTheClusterIsMadeOf(t *testing.T) {
	folder := t.TempDir()
	for _, name := range append([]string{mockProgram, mockLibrary, "machine.yaml"}, clusterPrograms...) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := Parameters{Nodes: 2, Programs: folder, Mock: folder, Machines: []string{filepath.Join(folder, "machine.yaml")}}
	if err := p.check(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	note := func(what string, p Parameters) {
		t.Helper()
		got, err := p.fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		if before, found := seen[got]; found {
			t.Errorf("%s: same fingerprint as %s", what, before)
		}
		seen[got] = what
	}
	note("the first", p)
	more := p
	more.Nodes = 3
	note("another number of nodes", more)
	for _, name := range []string{"machine.yaml", mockLibrary, "kube"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("changed "+name), 0o755); err != nil {
			t.Fatal(err)
		}
		note("another "+name, p)
	}
	again, err := p.fingerprint()
	if err != nil || seen[again] != "another kube" {
		t.Errorf("nothing changed, and yet it is the fingerprint of %q (%v)", seen[again], err)
	}

	for _, name := range []string{"machine.yaml", mockProgram, "ctr"} {
		if err := os.Remove(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
		if err := p.check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLastMachineFileServesAllFurtherNodes(t *testing.T) {
	p := Parameters{Nodes: 3, Machines: []string{"a", "b"}}
	for i, want := range []string{"a", "b", "b"} {
		if got := p.machine(i); got != want {
			t.Errorf("node %d has %q", i, got)
		}
	}
	if got := (Parameters{Nodes: 1}).machine(0); got != "" {
		t.Errorf("a machine file from nowhere: %q", got)
	}
}
