package problem

import (
	"encoding/json"
	"net/http"
)

// Write answers with a problem outside of huma's handlers.
func Write(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(New(status, detail)) // the client may be gone
}
