// Package pki makes the throw-away certificates and kubeconfigs of one test cluster.
//
// Everything is signed by one authority that lives and dies with the cluster; its key never leaves the state folder.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// lifetime outlives any test cluster; the start is set back because clocks of virtual machines jump.
const (
	lifetime = 365 * 24 * time.Hour
	setBack  = time.Hour
)

// Authority signs the certificates of one cluster.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// Pair is a certificate and its private key, both PEM.
type Pair struct {
	Certificate []byte
	Key         []byte
}

// Identity is what a certificate says about its holder: who it is as a client, where it is found as a server.
type Identity struct {
	Name   string
	Groups []string
	Hosts  []string
	IPs    []net.IP
}

// NewAuthority makes an authority with a fresh key.
func NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key of the authority %s: %w", name, err)
	}
	template, err := template(Identity{Name: name})
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = nil
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("certificate of the authority %s: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate of the authority %s: %w", name, err)
	}
	return &Authority{certificate: certificate, key: key, pem: encode("CERTIFICATE", der)}, nil
}

// Certificate is the authority's own certificate, PEM.
func (a *Authority) Certificate() []byte {
	return a.pem
}

// Issue makes a key and a certificate that serves as client and as server.
func (a *Authority) Issue(identity Identity) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("key of %s: %w", identity.Name, err)
	}
	template, err := template(identity)
	if err != nil {
		return Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("certificate of %s: %w", identity.Name, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("key of %s: %w", identity.Name, err)
	}
	return Pair{Certificate: encode("CERTIFICATE", der), Key: keyPEM}, nil
}

// SigningKey makes a key pair for service account tokens; Certificate holds the public key.
func SigningKey() (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("service account key: %w", err)
	}
	private, err := encodeKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("service account key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return Pair{}, fmt.Errorf("service account key: %w", err)
	}
	return Pair{Certificate: encode("PUBLIC KEY", public), Key: private}, nil
}

// Kubeconfig is a kubeconfig with everything inside, so that it can be copied anywhere. JSON is YAML.
func (a *Authority) Kubeconfig(server, name string, pair Pair) ([]byte, error) {
	type object = map[string]any
	return json.MarshalIndent(object{
		"apiVersion": "v1",
		"kind":       "Config",
		"clusters": []object{{
			"name":    name,
			"cluster": object{"server": server, "certificate-authority-data": a.pem},
		}},
		"users": []object{{
			"name": name,
			"user": object{"client-certificate-data": pair.Certificate, "client-key-data": pair.Key},
		}},
		"contexts": []object{{
			"name":    name,
			"context": object{"cluster": name, "user": name},
		}},
		"current-context": name,
	}, "", "  ")
}

func template(identity Identity) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("serial number of %s: %w", identity.Name, err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: identity.Name, Organization: identity.Groups},
		DNSNames:              identity.Hosts,
		IPAddresses:           identity.IPs,
		NotBefore:             now.Add(-setBack),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
