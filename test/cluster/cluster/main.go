// cluster runs a real Kubernetes on one Linux machine for tests: a control plane and a few nodes, without a container
// engine, without a network, in seconds.
//
// Each node, and the control plane, is a *member*: a set of namespaces (network, mount, PID, UTS, IPC) whose process 1 is
// this program again. The kernel ties everything a member has to that process: when it dies, so do all its processes,
// mounts and network interfaces. Cleaning up therefore works whatever was killed before, and a node can be rebooted.
//
// The files, by what they are about:
//
//	main, up, down, status, logs, exec, restart, images   the commands
//	state, fingerprint, process, host, api                what is remembered of a cluster, what is asked of it and of the host
//	network, control, node, pause                         what a cluster consists of
//	spec, probe, wire                                     where the outside and the inside of a member meet
//	spawn                                                 the outside: how a member is started
//	init, mounts, children, supervisor                    the inside: how it runs
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

type command struct {
	usage string
	run   func(ctx context.Context, args []string) error
}

// A function, not a variable: the commands refer to their own usage lines.
func commands() map[string]command {
	return map[string]command{
		"up":         {"up --name NAME --bin DIR [--mock DIR] [--nodes N] [--machine FILE ...]", up},
		"down":       {"down --name NAME", down},
		"status":     {"status --name NAME [--json]", status},
		"logs":       {"logs --name NAME [MEMBER [COMPONENT]]", logs},
		"load":       {"load --name NAME IMAGE.tar ...", load},
		"image":      {"image --out F.tar --ref REF [--file SRC:DST[:MODE] ...] [--entrypoint PROG] [--busybox] [--libs DIR]", buildImage},
		"restart":    {"restart --name NAME MEMBER COMPONENT", restart},
		"reboot":     {"reboot --name NAME NODE", reboot},
		"exec":       {"exec --name NAME MEMBER -- CMD ...", execute},
		"kubeconfig": {"kubeconfig --name NAME", kubeconfig},
	}
}

var order = []string{"up", "down", "status", "logs", "load", "image", "restart", "reboot", "exec", "kubeconfig"}

// usageError is a mistake in the command line.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return usageError{fmt.Sprintf(format, args...)}
}

// exitError ends the program with a status and without a message.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	switch filepath.Base(os.Args[0]) {
	case initName:
		runInit()
	case pauseName:
		pause()
	default:
		os.Exit(dispatch(os.Args[1:]))
	}
}

func dispatch(args []string) int {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		fmt.Fprint(os.Stderr, usage())
		if len(args) == 0 {
			return 2
		}
		return 0
	}
	command, known := commands()[args[0]]
	if !known {
		fmt.Fprintf(os.Stderr, "cluster: unknown command %q; want one of %s\n", args[0], strings.Join(order, ", "))
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := command.run(ctx, args[1:])

	var wrong usageError
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(os.Stderr, "usage: cluster %s\n", command.usage)
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case errors.As(err, &wrong):
		fmt.Fprintf(os.Stderr, "cluster %s: %v; usage: cluster %s\n", args[0], err, command.usage)
		return 2
	case ctx.Err() != nil:
		fmt.Fprintf(os.Stderr, "cluster %s: interrupted\n", args[0])
		return 130
	default:
		fmt.Fprintf(os.Stderr, "cluster %s: %v\n", args[0], err)
		return 1
	}
}

func usage() string {
	var text strings.Builder
	text.WriteString("usage:\n")
	for _, name := range order {
		fmt.Fprintf(&text, "  cluster %s\n", commands()[name].usage)
	}
	text.WriteString("State is kept in ${ALIQUOT_STATE:-/var/tmp/aliquot}/NAME.\n")
	return text.String()
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

func newFlags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

// parse reads flags and checks the number of what follows them; most below zero is no limit.
func parse(flags *flag.FlagSet, args []string, least, most int) error {
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usagef("%v", err)
	}
	switch count := flags.NArg(); {
	case count < least:
		return usagef("too few arguments")
	case most >= 0 && count > most:
		return usagef("unexpected argument %q", flags.Arg(most))
	}
	return nil
}

// parseNamed is parse for a command that acts on a cluster.
func parseNamed(flags *flag.FlagSet, args []string, least, most int) (*cluster, error) {
	name := flags.String("name", "", "")
	if err := parse(flags, args, least, most); err != nil {
		return nil, err
	}
	if *name == "" {
		return nil, usagef("--name is missing")
	}
	return newCluster(*name)
}

func kubeconfig(_ context.Context, args []string) error {
	c, err := parseNamed(newFlags("kubeconfig"), args, 0, 0)
	if err != nil {
		return err
	}
	if _, err := c.mustExist(); err != nil {
		return err
	}
	fmt.Println(c.kubeconfig())
	return nil
}
