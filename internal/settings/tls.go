package settings

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/streamcounter/streamcounter/internal/reload"
)

// ServerTLS returns the TLS configuration of HTTP and gRPC if --tls-cert is given. Certificates are read again when
// their files change. With --tls-client-ca, the server accepts only clients with a certificate of that authority.
// Both results are nil without --tls-cert.
func (c Access) ServerTLS(log *slog.Logger) (*tls.Config, *reload.Files[*tls.Config], error) {
	cert, key, ca := c.Cert, c.Key, c.ClientCA
	switch {
	case cert == "" && key == "" && ca == "":
		return nil, nil, nil
	case cert == "" || key == "":
		return nil, nil, Blame("tls-cert", errors.New(
			"give --tls-cert and --tls-key together; --tls-client-ca needs both"))
	}
	paths := []string{cert, key}
	if ca != "" {
		paths = append(paths, ca)
	}
	files, err := reload.Open("certificates", log, func(files []reload.File) (*tls.Config, error) {
		pair, err := tls.X509KeyPair(files[0].Data, files[1].Data)
		if err != nil {
			return nil, Blame("tls-cert", fmt.Errorf("%s and %s: %w", cert, key, err))
		}
		// A connection uses this configuration as a whole, so it must set the protocols too.
		c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
			NextProtos: []string{"h2", "http/1.1"}}
		if ca != "" {
			if c.ClientCAs, err = authorities(files[2].Data); err != nil {
				return nil, Blame("tls-client-ca", fmt.Errorf("%s: %w", ca, err))
			}
			c.ClientAuth = tls.RequireAndVerifyClientCert
		}
		return c, nil
	}, paths...)
	if unread, ok := errors.AsType[*fs.PathError](err); ok {
		err = Blame(map[string]string{cert: "tls-cert", key: "tls-key", ca: "tls-client-ca"}[unread.Path], err)
	}
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.Value(), nil },
	}, files, nil
}

func authorities(pem []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("it has no certificate in PEM form")
	}
	return pool, nil
}

// ClientFiles are the files with which this program verifies another server (ca), and authenticates itself to it
// (cert, key): --NAME-ca, --NAME-cert, --NAME-key.
type ClientFiles struct {
	name, ca, cert, key string
	anyName             bool // the server's certificate may be for another name
}

// Given reports whether any file is set: without files, the defaults of TLS apply.
func (f ClientFiles) Given() bool { return f.ca+f.cert+f.key != "" || f.anyName }

// verify checks that a certificate is signed by an authority in roots, whatever its name; nil: the authorities of the
// system.
func (f ClientFiles) verify(roots *x509.CertPool) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
		for _, c := range s.PeerCertificates[1:] {
			o.Intermediates.AddCert(c)
		}
		_, err := s.PeerCertificates[0].Verify(o)
		return err
	}
}

// Apply adds the files to a client's TLS configuration. The certificate is read again for each connection, so that a
// new one needs no restart; the authorities are read once.
func (f ClientFiles) Apply(c *tls.Config) error {
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err == nil {
			c.RootCAs, err = authorities(pem)
		}
		if err != nil {
			return Blame(f.name+"-ca", fmt.Errorf("%s: %w", f.ca, err))
		}
	}
	if f.anyName {
		c.InsecureSkipVerify, c.VerifyConnection = true, f.verify(c.RootCAs)
	}
	if (f.cert == "") != (f.key == "") {
		return Blame(f.name+"-cert", fmt.Errorf("--%[1]s-cert and --%[1]s-key are needed together", f.name))
	}
	if f.cert == "" {
		return nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, Blame(f.name+"-cert", fmt.Errorf("%s and %s: %w", f.cert, f.key, err))
		}
		return &pair, nil
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	_, err := load()
	return err
}
