package main

import (
	"context"
	"os"
	"slices"
)

// execute runs a program inside a member, with this program's standard files, and ends like it.
func execute(ctx context.Context, args []string) error {
	flags := newFlags("exec")
	c, err := parseNamed(flags, args, 2, -1)
	if err != nil {
		return err
	}
	r, err := c.mustExist()
	if err != nil {
		return err
	}
	member, command := flags.Arg(0), flags.Args()[1:]
	if err := c.mustHave(r, member); err != nil {
		return err
	}
	if command[0] == "--" {
		command = slices.Delete(command, 0, 1)
	}
	if len(command) == 0 {
		return usagef("the command is missing")
	}
	answered, err := c.ask(ctx, member, request{Exec: command}, os.Stdin, os.Stdout, os.Stderr)
	if err != nil {
		return err
	}
	if answered.ExitCode != 0 {
		return exitError(answered.ExitCode)
	}
	return nil
}
