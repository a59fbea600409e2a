package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a process known by its number and the time it was started, since numbers are used again.
type process struct {
	pid   int
	start string
}

// processOf identifies a running process.
func processOf(pid int) (process, error) {
	start, _, err := readStat(pid)
	if err != nil {
		return process{}, err
	}
	return process{pid, start}, nil
}

// readStat returns when a process was started, in ticks since the machine was, and its state.
func readStat(pid int) (start string, state string, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", "", err
	}
	return parseStat(string(text))
}

func parseStat(text string) (start string, state string, err error) {
	// The program's name is in brackets and may itself hold brackets and blanks.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const stateField, startField = 0, 19
	if len(fields) <= startField {
		return "", "", fmt.Errorf("unexpected process status %q", text)
	}
	return fields[startField], fields[stateField], nil
}

// running is false also for a process that has ended and was not waited for yet: its namespaces are gone by then.
func (p process) running() bool {
	start, state, err := readStat(p.pid)
	return err == nil && start == p.start && state != "Z" && state != "X"
}

// kill kills exactly this process, never another that got its number.
func (p process) kill() error {
	// The handle stays with the process that has the number now, which the start time then identifies.
	handle, err := os.FindProcess(p.pid)
	if err != nil {
		return err
	}
	defer handle.Release()
	if !p.running() {
		return nil
	}
	err = handle.Signal(syscall.SIGKILL)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

func (p process) waitGone(ctx context.Context) error {
	return waitUntil(ctx, func() error {
		if p.running() {
			return fmt.Errorf("process %d was killed and doesn't end", p.pid)
		}
		return nil
	})
}

func (c *cluster) processFile(member string) string {
	return filepath.Join(c.member(member), "pid")
}

func (c *cluster) writeProcess(member string, p process) error {
	return replaceFile(c.processFile(member), []byte(fmt.Sprintf("%d %s\n", p.pid, p.start)))
}

// readProcess returns the process 1 of a member, as seen from outside.
func (c *cluster) readProcess(member string) (p process, found bool, err error) {
	text, err := os.ReadFile(c.processFile(member))
	if errors.Is(err, fs.ErrNotExist) {
		return process{}, false, nil
	}
	if err != nil {
		return process{}, false, err
	}
	number, start, ok := strings.Cut(strings.TrimSpace(string(text)), " ")
	pid, err := strconv.Atoi(number)
	if !ok || err != nil || pid <= 1 {
		return process{}, false, fmt.Errorf("%s: unexpected content %q", c.processFile(member), text)
	}
	return process{pid, start}, true, nil
}

// waitUntil tries until there is no error any more, and returns the last one when the context ends.
func waitUntil(ctx context.Context, try func() error) error {
	return waitEvery(ctx, 20*time.Millisecond, try)
}

func waitEvery(ctx context.Context, interval time.Duration, try func() error) error {
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticks.C:
		}
	}
}
