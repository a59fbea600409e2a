package main

import (
	"os"
	"os/signal"
	"syscall"
)

// pauseName is what the program is called in the image of pods' sandboxes.
const pauseName = "pause"

// pause keeps a pod's namespaces alive, and waits for the pod's orphans where its containers share one PID namespace.
func pause() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
