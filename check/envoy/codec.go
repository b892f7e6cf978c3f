package envoy

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Codec writes messages by the methods that vtprotobuf generated for Envoy's API, if a message has them. It writes
// all others like gRPC's own codec.
type Codec struct{}

// vtMessage is what vtprotobuf generates.
type vtMessage interface {
	MarshalToSizedBufferVTStrict(buf []byte) (int, error)
	SizeVT() int
}

var standard = encoding.GetCodecV2(proto.Name)

// Name implements encoding.CodecV2.
func (Codec) Name() string { return proto.Name }

// Marshal implements encoding.CodecV2.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(vtMessage)
	if !ok {
		return standard.Marshal(v)
	}
	buf := make([]byte, m.SizeVT())
	n, err := m.MarshalToSizedBufferVTStrict(buf)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(buf[len(buf)-n:])}, nil
}

// Unmarshal implements encoding.CodecV2.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error { return standard.Unmarshal(data, v) }
