package streamtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Authority signs certificates for tests. Its own certificate is in the file CA.
type Authority struct {
	CA   string // path, PEM
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority returns an authority whose files are removed at the end of the test.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, CA: filepath.Join(t.TempDir(), "ca.pem")}
	template := a.template("authority of " + t.Name())
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	a.key = newKey(t)
	a.cert = a.sign(template, template, a.key, a.key, a.CA)
	return a
}

// Issue writes a certificate for 127.0.0.1 and localhost, valid for servers and clients, and its key, and returns
// their paths.
func (a *Authority) Issue(name string) (cert, key string) {
	a.t.Helper()
	dir := a.t.TempDir()
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	a.IssueTo(name, cert, key)
	return cert, key
}

// IssueTo writes a new certificate and key to files that may exist already. Each file is replaced at once.
func (a *Authority) IssueTo(name, cert, key string) {
	a.t.Helper()
	private := newKey(a.t)
	template := a.template(name)
	template.DNSNames, template.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.MarshalPKCS8PrivateKey(private)
	testkit.Must(a.t, err)
	a.write(key, "PRIVATE KEY", der)
	a.sign(template, a.cert, private, a.key, cert)
}

// Config returns the TLS configuration of a client that trusts the authority. The client presents a certificate of
// the same authority if cert is given.
func (a *Authority) Config(cert, key string) *tls.Config {
	a.t.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	c.RootCAs.AddCert(a.cert)
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		testkit.Must(a.t, err)
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

func (a *Authority) template(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	testkit.Must(a.t, err)
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
}

func (a *Authority) sign(template, parent *x509.Certificate, subject, signer *ecdsa.PrivateKey,
	path string) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &subject.PublicKey, signer)
	testkit.Must(a.t, err)
	cert, err := x509.ParseCertificate(der)
	testkit.Must(a.t, err)
	a.write(path, "CERTIFICATE", der)
	return cert
}

func (a *Authority) write(path, kind string, der []byte) {
	a.t.Helper()
	testkit.Must(a.t, os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	testkit.Must(a.t, os.Rename(path+".new", path))
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	return key
}
