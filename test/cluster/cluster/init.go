package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"aliquot.dev/test/cluster/internal/cgroup"
)

// initName is what a member's process 1 is called.
const initName = "cluster-init"

const specFile = 3

// runInit is process 1 of a member. It never returns; its standard output is the log.
func runInit() {
	if err := boot(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	select {}
}

func boot() error {
	var s spec
	if err := json.NewDecoder(os.NewFile(specFile, "spec")).Decode(&s); err != nil {
		return fmt.Errorf("whoever started this member died before it was set up: %w", err)
	}
	fmt.Printf("%s boots\n", s.Hostname)
	if err := syscall.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	if err := joinCgroup(s.Cgroup); err != nil {
		return err
	}
	if err := setUpMounts(s); err != nil {
		return err
	}
	for _, sysctl := range s.Sysctls {
		if err := os.WriteFile(sysctl.Path, []byte(sysctl.Content), 0); err != nil {
			return err
		}
	}
	// Programs are looked up, and components look up theirs, by this path.
	if err := os.Setenv("PATH", programsDir+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
		return err
	}
	children := newChildren()
	for _, command := range s.Setup {
		if err := children.run(command, os.Stdout); err != nil {
			return err
		}
	}
	supervisor := newSupervisor(children, s.Components)
	if err := serve(filepath.Join(configDir, socketName), supervisor); err != nil {
		return err
	}
	supervisor.start()
	return nil
}

func joinCgroup(group string) error {
	hierarchies, err := cgroup.Host()
	if err != nil {
		return err
	}
	own := group + "/init"
	if err := cgroup.Make(hierarchies, own); err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	if err := cgroup.Join(hierarchies, own); err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	return nil
}
