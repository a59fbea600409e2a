package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// spawned is a member whose init runs and waits for its spec.
type spawned struct {
	process process
	specs   *os.File
	// ended is closed when the init has ended, which it does only if it fails or is killed.
	ended chan struct{}
}

// spawn starts a member's init in new namespaces, and remembers it before it can do anything.
func (c *cluster) spawn(member string) (*spawned, error) {
	for _, folder := range []string{c.memberConfig(member), c.memberLog(member)} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, err
		}
	}
	log, err := os.OpenFile(filepath.Join(c.memberLog(member), initName+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reader.Close()

	command := exec.Command("/proc/self/exe")
	// The folder is for people who look at a list of processes.
	command.Args = []string{initName, c.member(member)}
	command.Dir = "/"
	// Nothing of the caller's: proxies, for one, would come between the API server and its webhooks.
	command.Env = []string{"HOME=/root", "LANG=C.UTF-8"}
	command.Stdout, command.Stderr = log, log
	command.ExtraFiles = []*os.File{reader}
	command.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC |
			syscall.CLONE_NEWNET,
	}
	if err := command.Start(); err != nil {
		writer.Close()
		return nil, fmt.Errorf("%s can't be given namespaces of its own: %w", member, err)
	}
	s := &spawned{specs: writer, ended: make(chan struct{})}
	s.process, err = processOf(command.Process.Pid)
	if err == nil {
		err = c.writeProcess(member, s.process)
	}
	if err != nil {
		// Without a spec it ends by itself.
		writer.Close()
		return nil, err
	}
	go func() {
		_ = command.Wait()
		close(s.ended)
	}()
	return s, nil
}

// boot hands over the spec.
func (s *spawned) boot(what spec) error {
	defer s.specs.Close()
	if err := json.NewEncoder(s.specs).Encode(what); err != nil {
		return fmt.Errorf("%s ended before it was set up: %w", what.Hostname, err)
	}
	return nil
}
