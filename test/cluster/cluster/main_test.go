package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every command line here must be refused before anything of the machine is looked at or changed.
func TestMistakesInTheCommandLineAreUsageErrors(t *testing.T) {
	t.Setenv(stateVariable, t.TempDir())
	for _, line := range []string{
		"", "bogus", "up", "up --bogus", "up --name dev", "up --name Dev --bin x", "up --name -dev --bin x",
		"up --name dev --bin x --nodes 0", "up --name dev --bin x --nodes 17", "up --name dev --bin x extra",
		"up --name dev --bin x --machine m", "up --name dev --bin x --mock y --nodes 1 --machine m --machine m",
		"down", "down --name dev extra", "status", "logs", "load --name dev", "image --out x", "image --ref x",
		"restart --name dev node-0", "reboot --name dev", "exec --name dev", "exec --name dev node-0", "kubeconfig",
	} {
		if got := dispatch(strings.Fields(line)); got != 2 {
			t.Errorf("cluster %s: exit status %d instead of 2", line, got)
		}
	}
}

func TestCommandsOnAClusterThatIsNotThere(t *testing.T) {
	state := t.TempDir()
	t.Setenv(stateVariable, state)
	for _, line := range []string{
		"status --name dev", "logs --name dev", "load --name dev x.tar", "restart --name dev node-0 kubelet",
		"reboot --name dev node-0", "exec --name dev node-0 -- true", "kubeconfig --name dev",
	} {
		if got := dispatch(strings.Fields(line)); got != 1 {
			t.Errorf("cluster %s: exit status %d instead of 1", line, got)
		}
	}
	if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
		t.Errorf("left in the state folder: %v (%v)", left, err)
	}
}

func TestEveryCommandIsInTheHelp(t *testing.T) {
	if len(order) != len(commands()) {
		t.Errorf("the help lists %d of %d commands", len(order), len(commands()))
	}
	for name := range commands() {
		if !strings.Contains(usage(), "cluster "+name) {
			t.Errorf("the help lacks %s", name)
		}
	}
}

func TestImageArchiveIsMadeWholeOrNotAtAll(t *testing.T) {
	folder := t.TempDir()
	program := filepath.Join(folder, "prog")
	if err := os.WriteFile(program, []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(folder, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	line := []string{"image", "--out", filepath.Join(out, "i.tar"), "--ref", "test:1", "--file", program + ":/bin/prog"}
	if got := dispatch(append(line, "--entrypoint", "/bin/absent")); got != 1 {
		t.Errorf("exit status %d for an entrypoint that isn't there", got)
	}
	if left, err := os.ReadDir(out); err != nil || len(left) > 0 {
		t.Errorf("left of an archive that failed: %v (%v)", left, err)
	}
	if got := dispatch(append(line, "--entrypoint", "/bin/prog")); got != 0 {
		t.Errorf("exit status %d", got)
	}
	if left, err := os.ReadDir(out); err != nil || len(left) != 1 || left[0].Name() != "i.tar" {
		t.Errorf("the folder holds %v (%v)", left, err)
	}
}
