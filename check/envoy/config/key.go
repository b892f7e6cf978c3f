package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf8"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/streamcounter/streamcounter/api"
)

// A key is written domain/k=v/k=v. In each part, the bytes that mean something in a key, or that a key may not have,
// are written %XX, so that no two descriptors share a key: % / = { } ; ~, control characters, what is not UTF-8, and
// U+FFFD, by which rules recognize what is not UTF-8.

// The domain and the entry by which our own clients ask for keys as they are.
const (
	ownDomain = "streamcounter"
	ownEntry  = "key"
)

const (
	// sumBytes is the length of what ends a shortened key or tag: ~ and a SHA-256 in hex.
	sumBytes = 1 + 2*sha256.Size
	// maxPart is the longest domain, key or value of a configuration, and the longest value of a tag, that is in a
	// key as it is. Longer ones are cut and end in a sum. A tag decides the partition, so its form depends on the
	// value alone, never on how long the rest of the key is.
	maxPart = 128
	// maxTagName is the longest name that --rls-tag may have, in bytes.
	maxTagName = 64
)

// Key returns the key that a descriptor is counted by if no configuration names its limit; rules match it. The first
// entry named tag is in braces, so that its value chooses the partition. A key over 512 bytes is cut and ends in ~
// and its SHA-256, and keeps its tag. If a descriptor of the domain `streamcounter` has the one entry `key`, its
// value is the key as it is, which the caller validates.
func Key(domain string, d *commonv3.RateLimitDescriptor, tag string) string {
	return keyOf(domain, d, tag, "")
}

// keyOf returns the key with a suffix that is never cut.
func keyOf(domain string, d *commonv3.RateLimitDescriptor, tag, suffix string) string {
	entries := d.GetEntries()
	if IsOwn(domain, d) {
		return entries[0].GetValue() + suffix
	}
	var room [api.MaxKeyBytes]byte
	buf := appendText(room[:0], domain)
	tagged := slices.IndexFunc(entries, func(e *entry) bool { return tag != "" && e.GetKey() == tag })
	for i, e := range entries {
		buf = unconfigured.appendEntry(buf, e, i == tagged)
	}
	if len(buf)+len(suffix) <= api.MaxKeyBytes {
		return string(append(buf, suffix...))
	}
	most := api.MaxKeyBytes - sumBytes - len(suffix)
	short := cut(buf, most)
	if from, to := bytes.IndexByte(buf, '{'), bytes.IndexByte(buf, '}')+1; to > len(short) {
		short = append(cut(buf[:from], most-(to-from)), buf[from:to]...)
	}
	return string(short) + sum(buf) + suffix
}

// unconfigured is the node of an entry that no configuration names.
var unconfigured node

// tagIn returns the part of a key in braces, with the slash before it. It returns an empty text if the key has no
// braces.
func tagIn(key string) string {
	from := strings.IndexByte(key, '{')
	if from < 0 {
		return ""
	}
	return key[from-1 : strings.IndexByte(key, '}')+1]
}

// IsOwn reports whether a descriptor asks for a key as it is.
func IsOwn(domain string, d *commonv3.RateLimitDescriptor) bool {
	return domain == ownDomain && len(d.GetEntries()) == 1 && d.GetEntries()[0].GetKey() == ownEntry
}

// plain has the bytes that are written as they are.
var plain = func() (ok [256]bool) {
	for c := byte(' '); c < 0x7f; c++ {
		ok[c] = !strings.ContainsRune("%/={};~", rune(c))
	}
	return ok
}()

// appendText writes s in the form that it has in a key.
func appendText(buf []byte, s string) []byte {
	const digits = "0123456789ABCDEF"
	for i := 0; i < len(s); {
		if plain[s[i]] {
			buf = append(buf, s[i])
			i++
			continue
		}
		n := 1
		if s[i] >= utf8.RuneSelf {
			var r rune
			if r, n = utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError && !api.Unprintable(r) {
				buf = append(buf, s[i:i+n]...)
				i += n
				continue
			}
		}
		for ; n > 0; n-- {
			buf = append(buf, '%', digits[s[i]>>4], digits[s[i]&15])
			i++
		}
	}
	return buf
}

// appendPart writes s in the form that it has in a key, shortened if that is long.
func appendPart(buf []byte, s string) []byte {
	from := len(buf)
	buf = appendText(buf, s)
	if len(buf)-from > maxPart {
		buf = append(buf[:from], shortened(buf[from:])...)
	}
	return buf
}

// shortened returns the beginning of a text and its hash, at most maxPart bytes.
func shortened(text []byte) string { return string(cut(text, maxPart-sumBytes)) + sum(text) }

func part(s string) string { return string(appendPart(nil, s)) }

// cut returns at most n bytes of what is written. It does not split characters or escapes.
func cut(text []byte, n int) []byte {
	n = max(n, 0)
	if len(text) <= n {
		return text[:len(text):len(text)]
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	for back := 1; back <= 2 && back <= n; back++ {
		if text[n-back] == '%' {
			n -= back
			break
		}
	}
	return text[:n:n]
}

func sum(whole []byte) string {
	h := sha256.Sum256(whole)
	return "~" + hex.EncodeToString(h[:])
}
