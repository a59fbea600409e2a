package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
)

// children knows the processes that an init has started, and waits for all others that fall to it as process 1.
type children struct {
	mutex   sync.Mutex
	waiting map[int]chan syscall.WaitStatus
}

func newChildren() *children {
	c := &children{waiting: map[int]chan syscall.WaitStatus{}}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			c.reap()
		}
	}()
	return c
}

func (c *children) reap() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid == 0 {
			return
		}
		if waiting, own := c.waiting[pid]; own {
			waiting <- status
			delete(c.waiting, pid)
		}
	}
}

// spawn starts a program, as leader of a process group, so that it can be killed with its children.
func (c *children) spawn(args, environment []string, files []*os.File) (int, <-chan syscall.WaitStatus, error) {
	program, err := exec.LookPath(args[0])
	if err != nil {
		return 0, nil, err
	}
	// Held until the process is entered, or it could be waited for by reap before.
	c.mutex.Lock()
	defer c.mutex.Unlock()
	started, err := os.StartProcess(program, args, &os.ProcAttr{
		Dir:   "/",
		Env:   environment,
		Files: files,
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return 0, nil, err
	}
	ended := make(chan syscall.WaitStatus, 1)
	c.waiting[started.Pid] = ended
	pid := started.Pid
	_ = started.Release()
	return pid, ended, nil
}

// run runs a program to its end.
func (c *children) run(args []string, output *os.File) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	_, ended, err := c.spawn(args, os.Environ(), []*os.File{null, output, output})
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	if status := <-ended; !status.Exited() || status.ExitStatus() != 0 {
		return fmt.Errorf("%s: %s", strings.Join(args, " "), describe(status))
	}
	return nil
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return fmt.Sprintf("killed by signal %d (%s)", status.Signal(), status.Signal())
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}

// exitCode is what a shell would make of the status.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
