package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// probe tells whether something is up: a socket that can be connected to, or a URL that answers OK.
type probe struct {
	// What people call it.
	What   string
	Socket string
	URL    string
	// CA is the file of the authority that vouches for the URL; without one anybody does, which is enough on loopback.
	CA string
}

const probeTimeout = 5 * time.Second

// Components that wait for the same thing ask at this rate while that thing needs the processor to start.
const probeInterval = 100 * time.Millisecond

func (p probe) check(ctx context.Context) error {
	client, err := p.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	return p.checkWith(ctx, client)
}

// wait checks until the probe succeeds.
func (p probe) wait(ctx context.Context) error {
	client, err := p.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	return waitEvery(ctx, probeInterval, func() error { return p.checkWith(ctx, client) })
}

func (p probe) client() (*http.Client, error) {
	config := &tls.Config{InsecureSkipVerify: p.CA == ""}
	if p.CA != "" {
		authority, err := os.ReadFile(p.CA)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(authority)
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config}}, nil
}

func (p probe) checkWith(ctx context.Context, client *http.Client) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var err error
	if p.Socket != "" {
		err = checkSocket(ctx, p.Socket)
	} else {
		err = checkURL(ctx, client, p.URL)
	}
	if err != nil {
		return fmt.Errorf("%s isn't ready: %w", p.What, err)
	}
	return nil
}

func checkSocket(ctx context.Context, path string) error {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	return connection.Close()
}

func checkURL(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s: %.200s", url, response.Status, strings.Join(strings.Fields(string(body)), " "))
	}
	return nil
}
