package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// worker is km0 in a process of its own, so that it can be killed.
type worker struct {
	stage *stage

	mu      sync.Mutex
	cmd     *exec.Cmd
	api     string
	waiting chan struct{}
}

// workerConfig shortens the waits between attempts: the day is a short one.
const workerConfig = `
consumers:
  default:
    retry: {attempts: 6, initial: 200ms, max: 1s, multiplier: 2, jitter: 0.2}
`

var apiLine = regexp.MustCompile(`API\s+(http://\S+)`)

// start runs a worker and returns when it is ready.
func (w *worker) start(ctx context.Context) error {
	s := w.stage
	configPath := filepath.Join(s.opts.State, "worker.yaml")
	if err := os.WriteFile(configPath, []byte(workerConfig), 0o644); err != nil {
		return fmt.Errorf("write the worker's configuration: %w", err)
	}
	log, err := os.OpenFile(w.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the worker's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(s.opts.Binary, "serve")
	cmd.Stderr = log
	cmd.SysProcAttr = dieWithParent()
	cmd.Env = append(withoutKM0(os.Environ()),
		"KM0_CONFIG="+configPath, "KM0_STATE="+filepath.Join(s.opts.State, "worker"),
		"KM0_HTTP_ADDR=127.0.0.1:0", "KM0_OPS_ADDR=127.0.0.1:0",
		"KM0_GATEWAY_URL="+s.url, "KM0_GATEWAY_TIMEOUT=1s", "KM0_BUS_DUPLICATES=0.1")
	for _, name := range databases {
		cmd.Env = append(cmd.Env, "KM0_DSN_"+strings.ToUpper(name)+"="+s.server.DSN("km0_"+name))
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start the worker: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the worker: %w", err)
	}
	found := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if m := apiLine.FindStringSubmatch(lines.Text()); m != nil {
				found <- m[1]
			}
		}
		_ = cmd.Wait()
	}()
	w.mu.Lock()
	w.cmd, w.waiting = cmd, ended
	w.mu.Unlock()
	select {
	case api := <-found:
		w.mu.Lock()
		w.api = api
		w.mu.Unlock()
		return nil
	case <-ended:
		return fmt.Errorf("the worker ended while starting\n%s", w.tail())
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(30 * time.Second):
		return errors.New("the worker is not ready after 30s")
	}
}

func withoutKM0(environ []string) (kept []string) {
	for _, pair := range environ {
		if !strings.HasPrefix(pair, "KM0_") || strings.HasPrefix(pair, "KM0_POSTGRES_") {
			kept = append(kept, pair)
		}
	}
	return kept
}

// kill is kill -9.
func (w *worker) kill() {
	w.mu.Lock()
	cmd, ended := w.cmd, w.waiting
	w.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Kill()
	<-ended
}

// url is where the API is now; it moves when the worker is replaced.
func (w *worker) url(path string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.api + path
}

func (w *worker) logPath() string { return filepath.Join(w.stage.opts.State, "worker.log") }

// tail is the end of the worker's log.
func (w *worker) tail() string {
	content, err := os.ReadFile(w.logPath())
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-2000):])
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
