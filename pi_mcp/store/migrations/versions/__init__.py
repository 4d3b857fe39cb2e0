"""The steps, oldest first. A step that was released is never changed; a new form is a new step."""
