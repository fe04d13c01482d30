package embedded

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Server is a running private PostgreSQL. Its methods may be called by several
// goroutines at once.
type Server struct {
	cfg    Config
	dir    string // the state folder, links resolved
	data   string
	tag    string
	who    account
	socket string

	pid     int
	done    chan struct{} // closed when the server process has ended
	exit    error         // why it ended; read after done
	running bool          // a process was started

	lock     *os.File // of the state folder
	cluster  *os.File // of the cluster, shared with the server's processes
	log      *serverLog
	unsocket func()

	creating sync.Mutex // one CREATE DATABASE at a time
	stopping sync.Once
	stopped  error
}

// Start returns when the server accepts connections. It creates the cluster if
// there is none, stops what an earlier run left, and waits for recovery after a
// crash: that takes as long as it takes, unless ctx ends it. ctx is for the start
// only; the server runs until Stop. A state folder in use is an [*InUseError].
//
// The caller calls Stop, also when Done is closed.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, done: make(chan struct{})}
	if err := s.start(ctx); err != nil {
		s.abandon()
		return nil, err
	}
	return s, nil
}

// start takes the folder, then the cluster, then runs the server: each step may
// rely on being alone with what the one before has taken.
func (s *Server) start(ctx context.Context) (err error) {
	began := time.Now()
	if s.who, err = chooseAccount(filepath.Join(s.cfg.Dir, "postgres")); err != nil {
		return err
	}
	if s.dir, err = prepareDir(s.cfg.Dir, s.who); err != nil {
		return err
	}
	s.data = filepath.Join(s.dir, "postgres")
	s.tag = tagOf(s.data)
	if s.lock, err = lockState(s.dir); err != nil {
		return err
	}
	if s.cluster, err = claimCluster(ctx, s.dir, s.data, s.tag, s.cfg.Logger); err != nil {
		return err
	}
	major, err := majorOf(s.data)
	if err != nil {
		return err
	}
	programs, err := locate(ctx, s.cfg, s.dir, s.who, major)
	if err != nil {
		return err
	}
	if s.log, err = openLog(filepath.Join(s.dir, "postgres.log")); err != nil {
		return err
	}
	if major == 0 {
		if err := createCluster(ctx, s.cfg, programs, s.data, s.who, s.cluster, s.log); err != nil {
			return err
		}
	}
	if s.socket, s.unsocket, err = socketDir(s.dir, s.who); err != nil {
		return err
	}
	if err := s.launch(programs); err != nil {
		return err
	}
	if err := s.awaitReady(ctx); err != nil {
		return err
	}
	s.cfg.Logger.Info("private PostgreSQL accepts connections", "version", fmt.Sprintf("%d.%d", programs.major, programs.minor),
		"programs", programs.dir, "data", s.data, "pid", s.pid, "new", major == 0, "took", time.Since(began))
	return nil
}

// PID is the process id of the server.
func (s *Server) PID() int { return s.pid }

// Done is closed when the server process has ended, whoever ended it.
func (s *Server) Done() <-chan struct{} { return s.done }

// hardStop is how long an immediate shutdown may take before the server is killed.
const hardStop = 5 * time.Second

// Stop shuts the server down (open transactions are rolled back, a checkpoint is
// written), waits for its end, and frees the state folder. When ctx ends first,
// the server is ended hard; the next start then recovers and nothing committed is
// lost. Stopping a server that has ended only frees the folder. A further call
// waits for the first and returns what it returned.
func (s *Server) Stop(ctx context.Context) error {
	s.stopping.Do(func() { s.stopped = s.stop(ctx) })
	return s.stopped
}

func (s *Server) stop(ctx context.Context) error {
	defer s.release()
	if s.ended() {
		return nil
	}
	signal(syscall.SIGINT, s.pid)
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
	}
	s.endHard()
	return fmt.Errorf("the PostgreSQL of %s did not stop in time and was ended hard (the next start recovers, nothing committed is lost): %w", s.dir, context.Cause(ctx))
}

// endHard returns when the server process has ended.
func (s *Server) endHard() {
	signal(syscall.SIGQUIT, s.pid)
	timer := time.NewTimer(hardStop)
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
		signal(syscall.SIGKILL, s.pid)
		<-s.done
	}
}

func (s *Server) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// abandon undoes a start that failed.
func (s *Server) abandon() {
	if s.running && !s.ended() {
		s.endHard()
	}
	s.release()
}

// release frees the state folder, last of all.
func (s *Server) release() {
	if s.unsocket != nil {
		s.unsocket()
	}
	if s.log != nil {
		s.log.file.Close()
	}
	if s.cluster != nil {
		s.cluster.Close()
	}
	if s.lock != nil {
		_ = sign(s.lock, "") // the pid is advice
		s.lock.Close()
	}
}
