package googleapi

type Error struct {
	Code    int
	Message string
	Body    string
}

func (e *Error) Error() string { return e.Message }
