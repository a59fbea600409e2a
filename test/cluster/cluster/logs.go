package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

const logSuffix = ".log"

// logs prints one log, or all of a member's, or says which there are.
func logs(_ context.Context, args []string) error {
	flags := newFlags("logs")
	c, err := parseNamed(flags, args, 0, 2)
	if err != nil {
		return err
	}
	r, err := c.mustExist()
	if err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return c.listLogs(r)
	}
	member := flags.Arg(0)
	if err := c.mustHave(r, member); err != nil {
		return err
	}
	files, err := c.logFiles(member)
	if err != nil {
		return err
	}
	if flags.NArg() == 1 {
		for _, file := range files {
			fmt.Printf("==> %s <==\n", file)
			if err := printFile(file); err != nil {
				return err
			}
		}
		return nil
	}
	var names []string
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), logSuffix)
		if name == flags.Arg(1) {
			return printFile(file)
		}
		names = append(names, name)
	}
	return fmt.Errorf("%s has no log of %q; it has %v", member, flags.Arg(1), names)
}

func (c *cluster) listLogs(r *record) error {
	for _, member := range r.members() {
		files, err := c.logFiles(member)
		if err != nil {
			return err
		}
		for _, file := range files {
			fmt.Printf("%s %s %s\n", member, strings.TrimSuffix(filepath.Base(file), logSuffix), file)
		}
	}
	return nil
}

func (c *cluster) logFiles(member string) ([]string, error) {
	return filepath.Glob(filepath.Join(c.memberLog(member), "*"+logSuffix))
}

func printFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(os.Stdout, file)
	return err
}
