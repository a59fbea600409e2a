package main

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// progress tells people what has been reached, and when.
type progress struct {
	mutex sync.Mutex
	start time.Time
}

func newProgress() *progress {
	return &progress{start: time.Now()}
}

func (p *progress) say(format string, args ...any) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	fmt.Fprintf(os.Stderr, "[%5.1f s] %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}
