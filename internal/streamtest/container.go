package streamtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/streamcounter/streamcounter/internal/testkit"
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

// dockerWith gives the Docker engine once it has what it takes to run image.
func dockerWith(image string) (*testcontainers.DockerProvider, error) {
	d, err := docker()
	if err != nil {
		return nil, err
	}
	if err := haveImage(d, image); err != nil {
		return nil, err
	}
	if !d.Config().Config.RyukDisabled {
		//lint:ignore SA1019 deprecated, but nothing else tells which image the library wants
		if err := haveImage(d, testcontainers.ReaperDefaultImage); err != nil {
			return nil, fmt.Errorf("%w (TESTCONTAINERS_RYUK_DISABLED=true does without)", err)
		}
	}
	return d, nil
}

func labelled() testcontainers.CustomizeRequestOption {
	return testcontainers.WithLabels(map[string]string{ContainerLabel: cmp.Or(os.Getenv(EnvRun),
		strconv.Itoa(os.Getpid()))})
}

// contained is a server in a container. It implements backend.
type contained struct {
	image  string
	ctr    *testcontainers.DockerContainer
	docker client.APIClient
	at     string
	ready  func(addr string) error
	paused bool
}

// runContainer starts a container of image whose server listens on port. With
// keepPort it has the same port on the host after a restart.
func runContainer(image string, port int, keepPort bool, ready func(addr string) error,
	opts ...testcontainers.ContainerCustomizer) (*contained, error) {
	d, err := dockerWith(image)
	if err != nil {
		return nil, err
	}
	inside := fmt.Sprintf("%d/tcp", port)
	opts = append(opts, testcontainers.WithExposedPorts(inside), labelled())
	if keepPort {
		host, err := testkit.TakePort()
		if err != nil {
			return nil, err
		}
		opts = append(opts, testcontainers.WithHostConfigModifier(func(c *container.HostConfig) {
			c.PortBindings = network.PortMap{network.MustParsePort(inside): {{HostPort: strconv.Itoa(host)}}}
		}))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ctr, err := testcontainers.Run(ctx, image, opts...)
	c := &contained{image: image, ctr: ctr, docker: d.Client(), ready: ready}
	if err == nil {
		c.at, err = ctr.PortEndpoint(ctx, inside, "")
	}
	if err == nil { // the engine's proxy listens before the server does
		err = ready(c.at)
	}
	if err != nil {
		c.remove()
		return nil, fmt.Errorf("run %s: %w", image, err)
	}
	return c, nil
}

func redisContainer(args []string) (backend, error) {
	cmd := append([]string{"redis-server", "--protected-mode", "no"}, redisSettings...)
	c, err := runContainer(cmp.Or(os.Getenv(EnvRedisImage), DefaultRedisImage), 6379, args != nil,
		func(addr string) error { return awaitRedis(addr, 0, nil) },
		testcontainers.WithCmd(append(cmd, args...)...),
		testcontainers.WithWaitStrategy(wait.ForLog("Ready to accept connections").WithPollInterval(pollEvery)),
	)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// redisOnHostNetwork runs a Redis in a container that shares the host's network:
// the nodes of a cluster tell each other and their clients where they are, which
// must be true from everywhere.
func redisOnHostNetwork(args []string) (backend, error) {
	image := cmp.Or(os.Getenv(EnvRedisImage), DefaultRedisImage)
	d, err := dockerWith(image)
	if err != nil {
		return nil, err
	}
	port, err := testkit.TakePort()
	if err != nil {
		return nil, err
	}
	cmd := append([]string{"redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(port)}, redisSettings...)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ctr, err := testcontainers.Run(ctx, image, labelled(),
		testcontainers.WithCmd(append(cmd, args...)...),
		testcontainers.WithHostConfigModifier(func(c *container.HostConfig) { c.NetworkMode = "host" }),
		testcontainers.WithWaitStrategy(wait.ForLog("Ready to accept connections").WithPollInterval(pollEvery)),
	)
	c := &contained{
		image: image, ctr: ctr, docker: d.Client(), at: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		ready: func(addr string) error { return awaitRedis(addr, 0, nil) },
	}
	if err == nil {
		err = c.ready(c.at)
	}
	if err != nil {
		c.remove()
		return nil, fmt.Errorf("run %s on the host's network: %w", image, err)
	}
	return c, nil
}

func (c *contained) addr() string { return c.at }

func (c *contained) start() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.ctr.Start(ctx); err != nil {
		return err
	}
	return c.ready(c.at)
}

func (c *contained) stop() error {
	if c.paused {
		if err := c.resume(); err != nil {
			return err
		}
	}
	return c.ctr.Stop(context.Background(), nil)
}

func (c *contained) kill() error {
	c.paused = false
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := c.docker.ContainerKill(ctx, c.ctr.ID, client.ContainerKillOptions{Signal: "KILL"})
	if err != nil {
		return err
	}
	gone := c.docker.ContainerWait(ctx, c.ctr.ID,
		client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-gone.Result:
		return nil
	case err := <-gone.Error:
		return err
	}
}

func (c *contained) pause() error {
	_, err := c.docker.ContainerPause(context.Background(), c.ctr.ID, client.ContainerPauseOptions{})
	c.paused = err == nil
	return err
}

func (c *contained) resume() error {
	c.paused = false
	_, err := c.docker.ContainerUnpause(context.Background(), c.ctr.ID, client.ContainerUnpauseOptions{})
	return err
}

func (c *contained) remove() {
	if c.ctr == nil {
		return
	}
	if c.paused {
		_ = c.resume()
	}
	if err := testcontainers.TerminateContainer(c.ctr, testcontainers.StopTimeout(0)); err != nil {
		fmt.Fprintf(os.Stderr, "streamtest: container %s of %s is left: %v\n", c.ctr.ID, c.image, err)
	}
}
