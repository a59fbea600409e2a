package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
)

// apiClient reads the few things of the API that tell whether a cluster is up.
type apiClient struct {
	server string
	http   *http.Client
}

// errNotThere is the API's word for an object that doesn't exist (yet).
var errNotThere = errors.New("not there")

// newAPIClient is the user of the cluster's kubeconfig.
func (c *cluster) newAPIClient() (*apiClient, error) {
	text, err := os.ReadFile(c.kubeconfig())
	if err != nil {
		return nil, err
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server    string
				Authority []byte `json:"certificate-authority-data"`
			}
		}
		Users []struct {
			User struct {
				Certificate []byte `json:"client-certificate-data"`
				Key         []byte `json:"client-key-data"`
			}
		}
	}
	if err := json.Unmarshal(text, &config); err != nil || len(config.Clusters) != 1 || len(config.Users) != 1 {
		return nil, fmt.Errorf("%s isn't as it was written: %w", c.kubeconfig(), err)
	}
	pair, err := tls.X509KeyPair(config.Users[0].User.Certificate, config.Users[0].User.Key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.kubeconfig(), err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.Clusters[0].Cluster.Authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	return &apiClient{server: config.Clusters[0].Cluster.Server, http: &http.Client{Transport: transport}}, nil
}

func (a *apiClient) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.server+path, nil)
	if err != nil {
		return err
	}
	response, err := a.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	switch response.StatusCode {
	case http.StatusOK:
		return json.Unmarshal(body, into)
	case http.StatusNotFound:
		return fmt.Errorf("%s: %w", path, errNotThere)
	default:
		return fmt.Errorf("%s: %s: %.300s", path, response.Status, body)
	}
}

// node is the part of a Node that matters here.
type node struct {
	Spec struct {
		Taints []struct{ Key, Effect string }
	}
	Status struct {
		Conditions []struct{ Type, Status, Message string }
		NodeInfo   struct{ BootID string }
	}
}

// nodeReady says why a node can't run pods.
func (a *apiClient) nodeReady(ctx context.Context, name string) (node, error) {
	var n node
	if err := a.get(ctx, "/api/v1/nodes/"+name, &n); err != nil {
		return n, fmt.Errorf("node %s: %w", name, err)
	}
	reason := "kubelet hasn't reported yet"
	for _, condition := range n.Status.Conditions {
		if condition.Type != "Ready" {
			continue
		}
		if condition.Status == "True" {
			reason = ""
		} else {
			reason = condition.Message
		}
	}
	for _, taint := range n.Spec.Taints {
		// The other effect, NoExecute, comes late and goes late, and pods tolerate it for minutes.
		if reason == "" && taint.Key == "node.kubernetes.io/not-ready" && taint.Effect == "NoSchedule" {
			reason = "still tainted " + taint.Key
		}
	}
	if reason != "" {
		return n, fmt.Errorf("node %s isn't ready: %s", name, reason)
	}
	return n, nil
}

// namespaceReady says what pods of the namespace default still lack.
func (a *apiClient) namespaceReady(ctx context.Context) error {
	for what, path := range map[string]string{
		"service account default":     "/api/v1/namespaces/default/serviceaccounts/default",
		"config map kube-root-ca.crt": "/api/v1/namespaces/default/configmaps/kube-root-ca.crt",
	} {
		var ignored struct{}
		if err := a.get(ctx, path, &ignored); err != nil {
			return fmt.Errorf("%s in the namespace default: %w", what, err)
		}
	}
	return nil
}
