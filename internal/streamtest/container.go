package streamtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// ContainerLabel marks every container started here; its value is EnvRun, or
// the process's id.
const ContainerLabel = "streamcounter.test.run"

// How long Docker may take to answer at all, and a container to start, including the download of its image.
const (
	dockerWithin = 3 * time.Second
	runWithin    = 3 * time.Minute
)

var errNoDocker = errors.New("no Docker")

// noDocker returns why there is no Docker engine; it checks once. A socket on which nobody answers must not block a
// test, and the library waits without a deadline.
var noDocker = sync.OnceValue(func() error {
	if os.Getenv(EnvDocker) == "0" {
		return errNoDocker
	}
	log.SetDefault(log.NewNoopLogger()) // the errors contain every failure
	answer := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil { // the library panics if a socket is wrong
				answer <- fmt.Errorf("%w: %v", errNoDocker, r)
			}
		}()
		_, err := testcontainers.NewDockerProvider()
		if err != nil {
			err = fmt.Errorf("%w: %w", errNoDocker, err)
		}
		answer <- err
	}()
	select {
	case err := <-answer:
		return err
	case <-time.After(dockerWithin):
		return fmt.Errorf("%w: it did not answer in %v", errNoDocker, dockerWithin)
	}
})

// runContainer starts a container of image whose server listens on port, and returns its address on the host.
func runContainer(image string, port int, ready func(addr string) error,
	opts ...testcontainers.ContainerCustomizer) (addr string, stop func(), err error) {
	if err := noDocker(); err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), runWithin)
	defer cancel()
	inside := fmt.Sprintf("%d/tcp", port)
	ctr, err := testcontainers.Run(ctx, image, append(opts, testcontainers.WithExposedPorts(inside),
		testcontainers.WithLabels(map[string]string{ContainerLabel: cmp.Or(os.Getenv(EnvRun),
			strconv.Itoa(os.Getpid()))}))...)
	stop = func() {
		if err := testcontainers.TerminateContainer(ctr, testcontainers.StopTimeout(0)); err != nil {
			fmt.Fprintf(os.Stderr, "streamtest: a container of %s is left: %v\n", image, err)
		}
	}
	if err == nil {
		addr, err = ctr.PortEndpoint(ctx, inside, "")
	}
	if err == nil { // the engine's proxy listens before the server does
		err = ready(addr)
	}
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("run %s: %w", image, err)
	}
	return addr, stop, nil
}
