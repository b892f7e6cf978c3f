package api

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strconv"
)

const (
	maxPlainToken   = 128 // bytes of a key that is in a subject as it is
	maxEncodedToken = 256 // bytes of the longest encoded token
)

// ThrottleSubject returns the subject of the throttle decisions of one rule and key.
func ThrottleSubject(prefix, rule, key string) string {
	return prefix + ".throttle." + rule + "." + KeyToken(key)
}

// alertSubject returns the subject of the alerts of one rule, level (percent) and key.
func alertSubject(prefix, rule string, level int, key string) string {
	return prefix + ".alert." + rule + "." + strconv.Itoa(level) + "." + KeyToken(key)
}

// KeyToken turns a key into one NATS subject token. A key of [A-Za-z0-9_:@=+-] up to 128 bytes stays as it is; any
// other becomes "~" and base64url without padding, or "~~" and the hex SHA-256 if that would be longer than 256
// bytes. No plain key begins with "~", so tokens of different forms are never equal. A token never contains ".", "*",
// ">" or white space.
func KeyToken(key string) string {
	if isPlain(key) {
		return key
	}
	if 1+base64.RawURLEncoding.EncodedLen(len(key)) <= maxEncodedToken {
		return "~" + base64.RawURLEncoding.EncodeToString([]byte(key))
	}
	sum := sha256.Sum256([]byte(key))
	return "~~" + hex.EncodeToString(sum[:])
}

// ParseKeyToken returns the key of a token, and false if the token is a hash (the payload has the key) or is not one
// of ours.
func ParseKeyToken(token string) (string, bool) {
	if len(token) == 0 || (len(token) > 1 && token[:2] == "~~") {
		return "", false
	}
	if token[0] != '~' {
		return token, isPlain(token)
	}
	key, err := base64.RawURLEncoding.DecodeString(token[1:])
	// The decoder ignores line ends and odd last bits: such a token is not ours.
	if err != nil || len(key) == 0 || KeyToken(string(key)) != token {
		return "", false
	}
	return string(key), true
}

func isPlain(key string) bool {
	if key == "" || len(key) > maxPlainToken {
		return false
	}
	for i := range len(key) {
		switch c := key[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '_', c == ':', c == '@', c == '=', c == '+', c == '-':
		default:
			return false
		}
	}
	return true
}
