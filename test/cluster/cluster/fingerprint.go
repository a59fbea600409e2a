package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Programs of --bin. The multi-call file kube is all of Kubernetes.
var clusterPrograms = []string{"kube", "containerd", "containerd-shim-runc-v2", "ctr", "ptp", "loopback", "host-local"}

const (
	mockProgram = "mock-nvml"
	mockLibrary = "libnvidia_ml_mock.so"
)

// Parameters are what a cluster was asked to be.
type Parameters struct {
	Nodes    int
	Programs string
	Mock     string
	Machines []string
}

func (p Parameters) members() []string {
	names := []string{controlMember}
	for i := range p.Nodes {
		names = append(names, nodeName(i))
	}
	return names
}

// machine is the machine file of a node; the last one serves all further nodes.
func (p Parameters) machine(node int) string {
	if len(p.Machines) == 0 {
		return ""
	}
	return p.Machines[min(node, len(p.Machines)-1)]
}

// check finds out what is missing before anything is started.
func (p Parameters) check() error {
	var missing []string
	for _, program := range clusterPrograms {
		if !isFile(filepath.Join(p.Programs, program)) {
			missing = append(missing, program)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("--bin %s lacks %s; build them from the Go module test/cluster", p.Programs, strings.Join(missing, ", "))
	}
	for _, machine := range p.Machines {
		if !isFile(machine) {
			return fmt.Errorf("--machine %s: there is no such file", machine)
		}
	}
	if len(p.Machines) == 0 {
		return nil
	}
	for _, name := range []string{mockProgram, mockLibrary} {
		if !isFile(filepath.Join(p.Mock, name)) {
			return fmt.Errorf("--mock %s lacks %s; build it from test/mock-nvml", p.Mock, name)
		}
	}
	return nil
}

// fingerprint is equal for clusters that would be the same. The programs of --bin are large and never change in place,
// so their size and time stand for them.
func (p Parameters) fingerprint() (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, p)
	for _, program := range clusterPrograms {
		info, err := os.Stat(filepath.Join(p.Programs, program))
		if err != nil {
			return "", err
		}
		fmt.Fprintln(sum, program, info.Size(), info.ModTime())
	}
	whole := append([]string{"/proc/self/exe"}, p.Machines...)
	if len(p.Machines) > 0 {
		whole = append(whole, filepath.Join(p.Mock, mockProgram), filepath.Join(p.Mock, mockLibrary))
	}
	for _, path := range whole {
		file, err := os.Open(path)
		if err != nil {
			return "", err
		}
		_, err = io.Copy(sum, file)
		file.Close()
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func shortHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:4])
}
