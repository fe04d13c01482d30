package envelope

import "context"

type correlationKey struct{}

// WithCorrelation makes id travel with every event published under ctx.
func WithCorrelation(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, correlationKey{}, id)
}

// Correlation is the id given to WithCorrelation, or "".
func Correlation(ctx context.Context) string {
	id, _ := ctx.Value(correlationKey{}).(string)
	return id
}
