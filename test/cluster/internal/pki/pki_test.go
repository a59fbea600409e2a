package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net"
	"testing"
)

func TestIssuedCertificateIsTrustedAsClientAndServer(t *testing.T) {
	authority, err := NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(Identity{
		Name:   "system:node:node-0",
		Groups: []string{"system:nodes"},
		Hosts:  []string{"node-0"},
		IPs:    []net.IP{net.ParseIP("198.18.0.10")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tls.X509KeyPair(pair.Certificate, pair.Key); err != nil {
		t.Fatalf("key doesn't fit its certificate: %v", err)
	}

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.Certificate())
	block, _ := pem.Decode(pair.Certificate)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Errorf("usage %v: %v", usage, err)
		}
	}
	for _, host := range []string{"node-0", "198.18.0.10"} {
		if err := certificate.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if certificate.VerifyHostname("node-1") == nil {
		t.Error("the certificate is valid for a host that it doesn't name")
	}
	if got := certificate.Subject.Organization; len(got) != 1 || got[0] != "system:nodes" {
		t.Errorf("groups are %v", got)
	}

	other, err := NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(other.Certificate())
	if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots}); err == nil {
		t.Error("another cluster's authority vouches for this certificate")
	}
}

func TestKubeconfigHoldsItsCertificates(t *testing.T) {
	authority, err := NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(Identity{Name: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := authority.Kubeconfig("https://198.18.0.2:6443", "dev", pair)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Users []struct {
			User struct {
				Certificate string `json:"client-certificate-data"`
			}
		}
	}
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	got, err := base64.StdEncoding.DecodeString(config.Users[0].User.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(pair.Certificate) {
		t.Error("the kubeconfig holds another certificate")
	}
}
