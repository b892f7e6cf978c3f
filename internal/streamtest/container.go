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

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// ContainerLabel marks every container started here; its value is EnvRun, or
// the process's id.
const ContainerLabel = "streamcounter.test.run"

// How long Docker may take to answer at all, a registry to begin to answer,
// and an image to arrive.
const (
	dockerWithin   = 3 * time.Second
	registryWithin = 5 * time.Second
	pullWithin     = 3 * time.Minute
)

var errNoDocker = errors.New("no Docker")

// docker finds the Docker engine, once. A socket that nobody answers must not
// hold a test up, and the library asks without a deadline.
var docker = sync.OnceValues(func() (*testcontainers.DockerProvider, error) {
	if os.Getenv(EnvDocker) == "0" {
		return nil, errNoDocker
	}
	log.SetDefault(log.NewNoopLogger()) // what fails is in the errors
	type answer struct {
		provider *testcontainers.DockerProvider
		err      error
	}
	found := make(chan answer, 1)
	go func() {
		var a answer
		defer func() {
			if r := recover(); r != nil { // how the library says that a socket is wrong
				a.err = fmt.Errorf("%v", r)
			}
			found <- a
		}()
		a.provider, a.err = testcontainers.NewDockerProvider()
	}()
	select {
	case a := <-found:
		if a.err != nil {
			return nil, fmt.Errorf("%w: %w", errNoDocker, a.err)
		}
		return a.provider, nil
	case <-time.After(dockerWithin):
		return nil, fmt.Errorf("%w: it did not answer in %v", errNoDocker, dockerWithin)
	}
})

// haveImage makes sure that an image is there, pulling it if need be. The
// library would try an unreachable registry again and again for a minute.
func haveImage(d *testcontainers.DockerProvider, image string) error {
	ctx, cancel := context.WithTimeout(context.Background(), pullWithin)
	defer cancel()
	if _, err := d.Client().ImageInspect(ctx, image); err == nil {
		return nil
	}
	silent := time.AfterFunc(registryWithin, cancel)
	pull, err := d.Client().ImagePull(ctx, image, client.ImagePullOptions{})
	if err != nil {
		return fmt.Errorf("no image %s: %w", image, err)
	}
	defer pull.Close()
	for progress, err := range pull.JSONMessages(ctx) {
		if err == nil && progress.Error != nil {
			err = progress.Error
		}
		if err != nil {
			return fmt.Errorf("no image %s: %w", image, err)
		}
		silent.Stop()
	}
	return nil
}

// imageReady finds Docker and has it get what it takes to run image.
func imageReady(image string) error {
	d, err := docker()
	if err != nil {
		return err
	}
	if err := haveImage(d, image); err != nil {
		return err
	}
	if !d.Config().Config.RyukDisabled {
		//lint:ignore SA1019 deprecated, but nothing else tells which image the library wants
		if err := haveImage(d, testcontainers.ReaperDefaultImage); err != nil {
			return fmt.Errorf("%w (TESTCONTAINERS_RYUK_DISABLED=true does without)", err)
		}
	}
	return nil
}

// runContainer starts a container of image whose server listens on port, and gives its address on the host.
func runContainer(image string, port int, ready func(addr string) error,
	opts ...testcontainers.ContainerCustomizer) (addr string, stop func(), err error) {
	if err := imageReady(image); err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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
