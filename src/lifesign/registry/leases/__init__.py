"""Operations on leases and guarded state."""
