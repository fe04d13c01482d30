package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// launch starts the server process and the goroutine that waits for its end.
func (s *Server) launch(programs install) error {
	s.log.mark()
	cmd := exec.Command(programs.program("postgres"), append([]string{"-D", s.data}, s.cfg.arguments(s.socket, s.tag)...)...)
	cmd.Dir = "/"
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = s.log.file, s.log.file
	cmd.ExtraFiles = []*os.File{s.cluster} // see claimCluster
	cmd.SysProcAttr = s.who.attributes()
	dieWithParent(cmd.SysProcAttr, syscall.SIGINT) // a fast shutdown

	started := make(chan error)
	go func() {
		// The parent that the kernel watches is the thread that forked, not the
		// process: it must live as long as the server.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			s.exit = cmd.Wait()
			close(s.done)
		}
	}()
	if err := <-started; err != nil {
		if s.who.drop && errors.Is(err, syscall.EPERM) {
			return fmt.Errorf("start PostgreSQL as %s: %w: this root may not change its user; run km0 as an ordinary user", s.who.name, err)
		}
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	s.pid, s.running = cmd.Process.Pid, true
	return nil
}

const (
	pingWithin   = 5 * time.Second
	answerWithin = 15 * time.Second // once the server says that it is ready
	reportEvery  = 5 * time.Second  // while a recovery goes on
)

// awaitReady returns when a connection was served. Recovery after a crash has no
// limit of its own: ended early, it would only begin again.
func (s *Server) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	began, report := time.Now(), reportEvery
	var ready time.Time
	for {
		select {
		case <-s.done:
			return s.log.explain("PostgreSQL ended while it started on "+s.data, exitReason(s.exit))
		case <-ctx.Done():
			return s.log.explain("wait for PostgreSQL on "+s.data, context.Cause(ctx))
		case <-tick.C:
		}
		if pf, err := readPidfile(s.data); err == nil && pf.ready && pf.pid == s.pid {
			if ready.IsZero() {
				ready = time.Now()
			}
			switch err := s.ping(ctx); {
			case err == nil:
				return nil
			case !transient(err) || time.Since(ready) > answerWithin:
				return s.log.explain("connect to PostgreSQL on "+s.data, err)
			}
		}
		if waited := time.Since(began); waited > report {
			report += reportEvery
			s.cfg.Logger.Info("PostgreSQL is still starting", "data", s.data, "waited", waited.Round(time.Second), "says", s.log.tail())
		}
	}
}

func exitReason(err error) error {
	if err == nil {
		return errors.New("somebody shut it down")
	}
	return err
}

func (s *Server) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingWithin)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// transient: the server is not there yet, as opposed to refusing for good.
func transient(err error) bool {
	const cannotConnectNow, tooManyConnections = "57P03", "53300"
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code == cannotConnectNow || refused.Code == tooManyConnections
	}
	var config *pgconn.ParseConfigError
	return !errors.As(err, &config)
}
