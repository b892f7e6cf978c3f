package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/internal/document"
)

// Bounds of a tokens file.
const (
	maxTokens     = 1000
	minTokenBytes = 16
	maxTokenBytes = 512
)

// The form of a name, as for rules, and of a token, as it may follow "Bearer" (RFC 6750).
var (
	nameForm  = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
	tokenForm = regexp.MustCompile(`^[A-Za-z0-9._~+/-]+=*$`)
)

// tokenEntry is one token as it is in the file.
type tokenEntry struct {
	name, token, sha256 string
	scopes              []string
}

// parseTokens reads the tokens of a file. No error shows a part of a token, nor of a value that could be a token by
// mistake, such as a name.
func parseTokens(name string, data []byte) (*table, error) {
	var list []*tokenEntry
	d, err := document.ReadSecret(name, data, "tokens, a list of name, scopes, and token or sha256",
		func(d *document.Document) document.Setter {
			return d.Mapping(document.Field{Name: "tokens", Need: document.Needed,
				Set: d.List(func(n *document.Node, at string) error {
					e := &tokenEntry{}
					list = append(list, e)
					return d.Mapping(
						document.Field{Name: "name", Need: document.Needed,
							Set: document.Leaf(d, &e.name, document.Text)},
						document.Field{Name: "token", Set: document.Leaf(d, &e.token, document.Text)},
						document.Field{Name: "sha256", Set: document.Leaf(d, &e.sha256, document.Text)},
						document.Field{Name: "scopes", Need: document.Needed,
							Set: document.Leaves(d, &e.scopes, document.Text)},
					)(n, at)
				})})
		})
	if err != nil {
		return nil, err
	}
	// An empty list revokes the last token: then nobody is let in.
	if len(list) > maxTokens {
		return nil, d.ErrorAt("tokens", "there are %d tokens: expected at most %d", len(list), maxTokens)
	}
	t := &table{grants: make(map[digest]grant, len(list))}
	_, _ = rand.Read(t.salt[:]) // never fails: see crypto/rand
	names, sums := map[string]string{}, map[digest]string{}
	for i, e := range list {
		at := fmt.Sprintf("tokens[%d]", i)
		if !nameForm.MatchString(e.name) {
			return nil, d.ErrorAt(at+".name", "name: want 1 to 64 of a-z, 0-9 and -")
		}
		if first := names[e.name]; first != "" {
			return nil, d.ErrorAt(at+".name", "the name is taken in line %d", d.Line(first))
		}
		names[e.name] = at + ".name"
		sum, field, err := e.digest(d, at)
		if err != nil {
			return nil, err
		}
		if first := sums[sum]; first != "" {
			return nil, d.ErrorAt(at+field, "it is the same token as that in line %d", d.Line(first))
		}
		sums[sum] = at + field
		g := grant{name: e.name, digest: sum}
		if len(e.scopes) == 0 {
			return nil, d.ErrorAt(at+".scopes", "scopes: want some of %s", oneOf(Scopes))
		}
		for j, s := range e.scopes {
			if !slices.Contains(Scopes, Scope(s)) {
				return nil, d.ErrorAt(fmt.Sprintf("%s.scopes[%d]", at, j), "an unknown scope%s: want some of %s",
					d.Quoted(s, strings.Split(oneOf(Scopes), ", ")...), oneOf(Scopes))
			}
			g.scopes = append(g.scopes, Scope(s))
		}
		t.grants[t.key(sum)] = g
	}
	return t, nil
}

// digest returns the SHA-256 of the entry's token, and the field that has it.
func (e *tokenEntry) digest(d *document.Document, at string) (sum digest, field string, err error) {
	switch {
	case (d.Line(at+".token") == 0) == (d.Line(at+".sha256") == 0):
		return sum, "", d.ErrorAt(at, "want either token or sha256")
	case d.Line(at+".sha256") != 0:
		raw, err := hex.DecodeString(strings.ToLower(e.sha256))
		if err != nil || len(raw) != sha256.Size {
			return sum, "", d.ErrorAt(at+".sha256", "sha256: want the SHA-256 of the token, 64 hexadecimal digits")
		}
		return digest(raw), ".sha256", nil
	case len(e.token) < minTokenBytes || len(e.token) > maxTokenBytes || !tokenForm.MatchString(e.token):
		return sum, "", d.ErrorAt(at+".token",
			"token: want %d to %d of A-Z a-z 0-9 . _ ~ + / - (as openssl rand -hex 32 prints)", minTokenBytes,
			maxTokenBytes)
	}
	return sha256.Sum256([]byte(e.token)), ".token", nil
}

// oneOf formats a list of names for an error.
func oneOf[S ~string](names []S) string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = string(n)
	}
	return strings.Join(list, ", ")
}
