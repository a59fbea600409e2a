package main

import (
	"os"
	"os/exec"
	"testing"
)

func TestOnlyTheProcessThatIsMeantIsKilled(t *testing.T) {
	command := exec.Command("sleep", "600")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}()
	p, err := processOf(command.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}

	reused := process{pid: p.pid, start: p.start + "0"}
	if reused.running() {
		t.Error("a process of another time passes for this one")
	}
	if err := reused.kill(); err != nil {
		t.Error(err)
	}
	if !p.running() {
		t.Fatal("a process was killed that only had the same number")
	}

	if err := p.kill(); err != nil {
		t.Fatal(err)
	}
	// It stays a zombie until it is waited for below; that counts as gone.
	if err := p.waitGone(t.Context()); err != nil {
		t.Error(err)
	}
	if err := p.kill(); err != nil {
		t.Errorf("killing it again: %v", err)
	}
}

func TestProcessStatusWithAnOddName(t *testing.T) {
	text := "42 (a) b (c) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 100 1 2 3"
	start, state, err := parseStat(text)
	if err != nil || start != "98765" || state != "S" {
		t.Errorf("start %q, state %q (%v)", start, state, err)
	}
	if _, _, err := parseStat("42 (a) S 1"); err == nil {
		t.Error("a line that was cut off is accepted")
	}
}

func TestProcessFile(t *testing.T) {
	c := testCluster(t)
	if _, found, err := c.readProcess("node-0"); found || err != nil {
		t.Errorf("without a file: %v, %v", found, err)
	}
	if err := os.MkdirAll(c.member("node-0"), 0o755); err != nil {
		t.Fatal(err)
	}
	want := process{pid: 42, start: "98765"}
	if err := c.writeProcess("node-0", want); err != nil {
		t.Fatal(err)
	}
	if got, found, err := c.readProcess("node-0"); got != want || !found || err != nil {
		t.Errorf("read %v, %v, %v", got, found, err)
	}
	// Numbers with a meaning of their own for kill(2) must never come out of a damaged file.
	for _, bad := range []string{"", "42", "x 1", "0 1", "1 1", "-1 1"} {
		if err := os.WriteFile(c.processFile("node-0"), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, found, err := c.readProcess("node-0"); found || err == nil {
			t.Errorf("%q is read as process %v", bad, p)
		}
	}
}
