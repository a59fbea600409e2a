package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"aliquot.dev/test/cluster/internal/image"
)

// load imports image archives on every node.
func load(ctx context.Context, args []string) error {
	flags := newFlags("load")
	c, err := parseNamed(flags, args, 1, -1)
	if err != nil {
		return err
	}
	r, err := c.mustExist()
	if err != nil {
		return err
	}
	for _, archive := range flags.Args() {
		if !isFile(archive) {
			return fmt.Errorf("image archive %s: there is no such file; cluster image makes one", archive)
		}
	}
	tell := newProgress()
	tell.say("%d images are loaded on %d nodes", flags.NArg(), r.Nodes)
	errs := make([]error, r.Nodes)
	var all sync.WaitGroup
	for i := range r.Nodes {
		all.Go(func() { errs[i] = c.loadOn(ctx, nodeName(i), flags.Args()) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	tell.say("done")
	return nil
}

func (c *cluster) loadOn(ctx context.Context, node string, archives []string) error {
	for _, archive := range archives {
		if err := c.loadOne(ctx, node, archive); err != nil {
			return fmt.Errorf("image archive %s: %w", archive, err)
		}
	}
	return nil
}

func (c *cluster) loadOne(ctx context.Context, node, archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	output, err := os.CreateTemp("", "cluster-load-")
	if err != nil {
		return err
	}
	defer output.Close()
	if err := os.Remove(output.Name()); err != nil {
		return err
	}
	answered, err := c.ask(ctx, node, request{Exec: c.importCommand("-")}, file, output, output)
	if err != nil {
		return err
	}
	if answered.ExitCode == 0 {
		return nil
	}
	if _, err := output.Seek(0, io.SeekStart); err != nil {
		return err
	}
	said, err := io.ReadAll(output)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s can't import it: %s", node, said)
}

// buildImage writes an image archive.
func buildImage(_ context.Context, args []string) error {
	flags := newFlags("image")
	var files list
	out := flags.String("out", "", "")
	ref := flags.String("ref", "", "")
	entrypoint := flags.String("entrypoint", "", "")
	libraries := flags.String("libs", "", "")
	busybox := flags.Bool("busybox", false, "")
	flags.Var(&files, "file", "")
	if err := parse(flags, args, 0, 0); err != nil {
		return err
	}
	if *out == "" || *ref == "" {
		return usagef("--out and --ref are needed")
	}
	i := image.New(*ref)
	if *entrypoint != "" {
		i.Entrypoint = []string{*entrypoint}
	}
	if *libraries != "" {
		if err := i.AddLibraries(*libraries); err != nil {
			return err
		}
	}
	if *busybox {
		if err := i.AddBusybox(); err != nil {
			return err
		}
	}
	for _, file := range files {
		if err := i.AddFile(file); err != nil {
			return err
		}
	}
	return writeImage(i, *out)
}

// writeImage leaves no half an archive behind.
func writeImage(i *image.Image, path string) error {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if err := i.Write(file); err != nil {
		return err
	}
	if err := file.Chmod(0o644); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
