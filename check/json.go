package check

import (
	"bytes"
	"strconv"
)

// loneSurrogate gives the place of the first \u escape that is half a character,
// -1 where there is none. encoding/json puts U+FFFD in its place, and two keys
// that differ there would be counted as one. body may be any bytes.
func loneSurrogate(body []byte) int {
	const low, lowEnd = 0xDC00, 0xE000
	for i := bytes.IndexByte(body, '\\'); i >= 0 && i+1 < len(body); {
		step := 2 // past the escaped character
		switch unit := escape(body[i:]); {
		case unit >= low && unit < lowEnd:
			return i
		case unit >= 0xD800 && unit < low:
			if next := escape(body[i+6:]); next < low || next >= lowEnd {
				return i
			}
			step = 12
		}
		next := bytes.IndexByte(body[i+step:], '\\')
		if next < 0 {
			return -1
		}
		i += step + next
	}
	return -1
}

// escape is the value of the \uXXXX that b begins with, or -1.
func escape(b []byte) int64 {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	unit, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int64(unit)
}

// elements counts those of the array that body begins with, as far as it goes.
func elements(body []byte) int {
	depth, commas, inside := 0, 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inside && c == '\\':
			i++
		case c == '"':
			inside = !inside
		case inside:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			if depth--; depth == 0 {
				return commas + 1
			}
		case c == ',' && depth == 1:
			commas++
		}
	}
	return commas + 1
}
