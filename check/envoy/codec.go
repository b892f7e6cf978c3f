package envoy

import (
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
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

// Unmarshal implements encoding.CodecV2. A request for limits may have text that is not UTF-8, because Envoy sends
// headers as they are: an error would let such a request pass all limits.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	err := standard.Unmarshal(data, v)
	if request, ok := v.(*rlsv3.RateLimitRequest); ok && err != nil {
		protobuf.Reset(request)
		return unmarshalAnyText(data.Materialize(), request.ProtoReflect())
	}
	return err
}

// unmarshalAnyText reads a message whose text, and that of the lists in it, need not be UTF-8.
func unmarshalAnyText(data []byte, m protoreflect.Message) error {
	for len(data) > 0 {
		number, kind, size := protowire.ConsumeField(data)
		if size < 0 {
			return protowire.ParseError(size)
		}
		whole := data[:size]
		data = data[size:]
		_, _, tag := protowire.ConsumeTag(whole)
		text, _ := protowire.ConsumeBytes(whole[tag:])
		field, err := m.Descriptor().Fields().ByNumber(number), error(nil)
		known := field != nil && kind == protowire.BytesType
		switch {
		case known && field.Kind() == protoreflect.StringKind && !field.IsList():
			m.Set(field, protoreflect.ValueOfString(string(text)))
		case known && field.Kind() == protoreflect.MessageKind && field.IsList():
			err = unmarshalAnyText(text, m.Mutable(field).List().AppendMutable().Message())
		default:
			err = protobuf.UnmarshalOptions{Merge: true}.Unmarshal(whole, m.Interface())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
