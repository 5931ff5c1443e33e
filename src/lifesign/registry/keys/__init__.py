"""Operations on API keys."""
