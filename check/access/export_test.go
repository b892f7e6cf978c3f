package access

// ParseTokens reads a tokens file and forgets it.
func ParseTokens(name string, data []byte) error {
	_, err := parseTokens(name, data)
	return err
}
