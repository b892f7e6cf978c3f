package client

// Dial makes a Client that calls the server at url over HTTP, such as http://127.0.0.1:8080. It connects when it is
// used, so a server that is away is not an error here: Config.Policy answers until the server is there.
//
// It is NewHTTP with Config.HTTP, and New around it.
func Dial(url string, c Config) (*Client, error) {
	transport, err := NewHTTP(url, c.HTTP)
	if err != nil {
		return nil, err
	}
	d, err := New(transport, c)
	if err != nil {
		return nil, err
	}
	d.close = transport.Close
	return d, nil
}
