package embedded

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
)

const (
	connectWithin = 10 * time.Second
	largestJar    = 512 << 20 // bytes
	downloadTries = 3         // when the transfer breaks off; a refusal is final at once
)

var errStalled = errors.New("the transfer stalled")

// download writes url to path, or leaves nothing there that has another checksum.
func download(ctx context.Context, cfg Config, url, sum, path, title string) error {
	client := newClient()
	defer client.CloseIdleConnections()
	var err error
	for range downloadTries {
		var again bool
		if again, err = downloadOnce(ctx, client, cfg, url, sum, path, title); !again {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", url, err)
	}
	return nil
}

// newClient has limits for connecting and for the answer's beginning; the
// transfer may take as long as it moves.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: connectWithin}).DialContext,
		TLSHandshakeTimeout:   connectWithin,
		ResponseHeaderTimeout: 2 * connectWithin,
		ForceAttemptHTTP2:     true,
	}}
}

func downloadOnce(ctx context.Context, client *http.Client, cfg Config, url, sum, path, title string) (again bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return false, bare(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("the server answers %s", resp.Status)
	}

	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return false, err
	}
	defer f.Close()
	bar := newBar(cfg.Progress, resp.ContentLength, title)
	stall := time.AfterFunc(cfg.from.stall, func() { cancel(errStalled) })
	defer stall.Stop()
	hash := sha256.New()
	body := &movingReader{r: io.LimitReader(resp.Body, largestJar), moved: func() { stall.Reset(cfg.from.stall) }}
	if n, err := io.Copy(io.MultiWriter(f, hash, bar), body); err != nil {
		_ = bar.Exit() // drawing only
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		var onDisk *os.PathError
		again = ctx.Err() == nil && !errors.As(err, &onDisk)
		return again, fmt.Errorf("after %d of %d bytes: %w", n, resp.ContentLength, err)
	}
	_ = bar.Finish() // drawing only
	if got := hex.EncodeToString(hash.Sum(nil)); got != sum {
		_ = os.Remove(path) // its folder goes anyway
		return false, fmt.Errorf("wrong checksum: SHA-256 is %s, must be %s: the mirror or a proxy changed the file", got, sum)
	}
	return false, f.Close()
}

// bare drops the method and URL that net/http puts before the cause: the caller
// names them.
func bare(err error) error {
	if outer := errors.Unwrap(err); outer != nil {
		return outer
	}
	return err
}

type movingReader struct {
	r     io.Reader
	moved func()
}

func (m *movingReader) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if n > 0 {
		m.moved()
	}
	return n, err
}

func newBar(w io.Writer, size int64, title string) *progressbar.ProgressBar {
	if w == nil {
		w = io.Discard
	}
	return progressbar.NewOptions64(size,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(title),
		progressbar.OptionShowBytes(true),
		progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionOnCompletion(func() { fmt.Fprintln(w) }),
	)
}
