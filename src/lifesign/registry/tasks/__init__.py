"""Operations on tasks and their runs."""
