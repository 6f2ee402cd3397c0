"""``emberflow doctor``: what will work here, and what to do about the rest."""
