package api

import (
	"fmt"
	"maps"
	"slices"
)

// Bounds of the values of a check or an event.
const (
	maxValues     = 16
	maxValueBytes = 256
	maxFieldBytes = 64
)

// IsEventField reports whether events have a field of this name that is not a value.
func IsEventField(name string) bool {
	return slices.Contains([]string{"key", "count", "id", "traceparent", "tracestate"}, name)
}

// ValidateValue reports whether a value of a field may be counted: 1 to 256 bytes of UTF-8 without control characters
// and invisible ones. The error wraps ErrBadValue.
func ValidateValue(field, value string) error {
	return validateText(value, maxValueBytes, fmt.Errorf("%w of %s", ErrBadValue, Shorten(field)))
}

// ValidateValues validates all values of a check or an event, at most 16.
func ValidateValues(values map[string]string) error {
	if len(values) > maxValues {
		return fmt.Errorf("%w: there are %d values, at most %d are allowed", ErrBadValue, len(values), maxValues)
	}
	for _, field := range slices.Sorted(maps.Keys(values)) {
		if IsEventField(field) {
			return fmt.Errorf("%w: the field %q has another meaning", ErrBadValue, field)
		}
		if err := validateText(field, maxFieldBytes, fmt.Errorf("%w: the name of a field", ErrBadValue)); err != nil {
			return err
		}
		if err := ValidateValue(field, values[field]); err != nil {
			return err
		}
	}
	return nil
}
