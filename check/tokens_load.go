package check

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/token"
)

// Bounds of a tokens file.
const (
	maxTokens     = 1000
	minTokenBytes = 16
	maxTokenBytes = 512
)

// A name as rules have it, and what may stand after "Bearer" (RFC 6750).
var (
	nameForm  = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
	tokenForm = regexp.MustCompile(`^[A-Za-z0-9._~+/-]+=*$`)
)

const wantTokens = "tokens, a list of name, scopes, and token or sha256"

// tokensFile is the file as it is written.
type tokensFile struct {
	Tokens []tokenEntry `yaml:"tokens"`
}

type tokenEntry struct {
	Name   text   `yaml:"name"`
	Token  text   `yaml:"token"`
	SHA256 text   `yaml:"sha256"`
	Scopes []text `yaml:"scopes"`
}

// parseTokens reads the tokens of a file. No error shows a part of one, nor of
// anything that could be one by a slip, such as a name.
func parseTokens(name string, data []byte) (*table, error) {
	f := yamlFile{name}
	var in tokensFile
	if err := f.decode(data, &in, wantTokens); err != nil {
		return nil, err
	}
	if len(in.Tokens) == 0 {
		return nil, f.errorf(nil, "there are no tokens: want %s", wantTokens)
	}
	if len(in.Tokens) > maxTokens {
		return nil, f.errorf(nil, "there are %d tokens: want %d at most", len(in.Tokens), maxTokens)
	}
	t := &table{grants: make(map[digest]grant, len(in.Tokens))}
	_, _ = rand.Read(t.salt[:]) // never fails: see crypto/rand
	names := map[string]*token.Token{}
	lines := map[digest]*token.Token{}
	for i, e := range in.Tokens {
		at := e.place()
		if !nameForm.MatchString(e.Name.value) {
			return nil, f.errorf(at, "tokens[%d]: want a name of a-z, 0-9 and -, 1 to 64 of them", i)
		}
		if first := names[e.Name.value]; first != nil {
			return nil, f.errorf(e.Name.at, "the name is taken in line %d", first.Position.Line)
		}
		names[e.Name.value] = e.Name.at
		sum, err := e.digest(f, i)
		if err != nil {
			return nil, err
		}
		if first := lines[sum]; first != nil {
			return nil, f.errorf(at, "tokens[%d] is the same token as that in line %d", i, first.Position.Line)
		}
		lines[sum] = at
		g := grant{name: e.Name.value, digest: sum}
		if len(e.Scopes) == 0 {
			return nil, f.errorf(at, "tokens[%d] has no scopes: want some of %s", i, oneOf(Scopes))
		}
		for _, s := range e.Scopes {
			if !slices.Contains(Scopes, Scope(s.value)) {
				return nil, f.errorf(s.at, "tokens[%d] has an unknown scope: want some of %s", i, oneOf(Scopes))
			}
			g.scopes = append(g.scopes, Scope(s.value))
		}
		t.grants[t.key(sum)] = g
	}
	return t, nil
}

// place is the first thing of an entry that has one.
func (e tokenEntry) place() *token.Token {
	for _, t := range append([]text{e.Name, e.Token, e.SHA256}, e.Scopes...) {
		if t.at != nil {
			return t.at
		}
	}
	return nil
}

func (e tokenEntry) digest(f yamlFile, i int) (sum digest, err error) {
	switch {
	case (e.Token.at == nil) == (e.SHA256.at == nil):
		return sum, f.errorf(e.place(), "tokens[%d]: want either token or sha256", i)
	case e.SHA256.at != nil:
		raw, err := hex.DecodeString(strings.ToLower(e.SHA256.value))
		if err != nil || len(raw) != sha256.Size {
			return sum, f.errorf(e.SHA256.at, "tokens[%d]: want the SHA-256 of the token, 64 hexadecimal digits", i)
		}
		return digest(raw), nil
	case len(e.Token.value) < minTokenBytes || len(e.Token.value) > maxTokenBytes || !tokenForm.MatchString(e.Token.value):
		return sum, f.errorf(e.Token.at, "tokens[%d]: want %d to %d of A-Z a-z 0-9 . _ ~ + / - (as openssl rand -hex 32 prints)", i, minTokenBytes, maxTokenBytes)
	}
	return sha256.Sum256([]byte(e.Token.value)), nil
}
