// issuecert issues P-256 certificates for a control plane that lives for one test run.
//
//	issuecert DIR < requests.json
//
// requests.json is a list of {"name", "commonName", "organizations", "hosts"}: each becomes DIR/name.crt and
// DIR/name.key. A request with hosts is a serving certificate (hosts are DNS names and IP addresses), one
// without is a client certificate. The authority is DIR/ca.crt and DIR/ca.key, made when it is missing.
// Everything is valid for ten days from an hour ago: no machine should trust a test's authority for long.
package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

type request struct {
	Name          string   `json:"name"`
	CommonName    string   `json:"commonName"`
	Organizations []string `json:"organizations"`
	Hosts         []string `json:"hosts"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: issuecert DIR < requests.json")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "issuecert:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	var requests []request
	if err := json.NewDecoder(os.Stdin).Decode(&requests); err != nil {
		return fmt.Errorf("read the requests from standard input: %w", err)
	}
	ca, caKey, err := authority(dir)
	if err != nil {
		return err
	}
	for _, r := range requests {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		cert := template(r.CommonName, r.Organizations)
		cert.KeyUsage = x509.KeyUsageDigitalSignature
		cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		if len(r.Hosts) > 0 {
			cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}
		for _, host := range r.Hosts {
			if ip := net.ParseIP(host); ip != nil {
				cert.IPAddresses = append(cert.IPAddresses, ip)
			} else {
				cert.DNSNames = append(cert.DNSNames, host)
			}
		}
		der, err := x509.CreateCertificate(rand.Reader, cert, ca, key.Public(), caKey)
		if err != nil {
			return fmt.Errorf("certificate %q: %w", r.Name, err)
		}
		if err := write(dir, r.Name, der, key); err != nil {
			return err
		}
	}
	return nil
}

func template(commonName string, organizations []string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: commonName, Organization: organizations},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(10 * 24 * time.Hour),
	}
}

func authority(dir string) (*x509.Certificate, crypto.Signer, error) {
	certPEM, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if errors.Is(err, fs.ErrNotExist) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, nil, err
		}
		cert := template("vk-sandbox test authority", nil)
		cert.IsCA = true
		cert.BasicConstraintsValid = true
		cert.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
		der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
		if err != nil {
			return nil, nil, err
		}
		if err := write(dir, "ca", der, key); err != nil {
			return nil, nil, err
		}
		parsed, err := x509.ParseCertificate(der)
		return parsed, key, err
	}
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, nil, err
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, nil, fmt.Errorf("%s: ca.crt or ca.key is not PEM", dir)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, nil, err
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	return cert, key, err
}

// write renames into place, so that a reader never sees half a certificate; the key comes first.
func write(dir, name string, der []byte, key *ecdsa.PrivateKey) error {
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	for _, file := range []struct {
		ending, kind string
		der          []byte
	}{{".key", "EC PRIVATE KEY", keyDER}, {".crt", "CERTIFICATE", der}} {
		path := filepath.Join(dir, name+file.ending)
		if err := os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: file.kind, Bytes: file.der}), 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return nil
}
